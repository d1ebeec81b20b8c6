"""The lab's app in a version where ``pay`` is called ``settle``."""

from __future__ import annotations

import threading
from typing import Any

from tests.services import lab

_building = threading.Lock()


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(name)
    with _building:
        app = lab.app
        if "settle" not in app.tasks:
            pay = app.tasks.pop("pay")
            app.register_task(type("settle", (type(pay),), {"name": "settle"})())
    return app
