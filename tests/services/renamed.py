"""The lab's app in a version where ``pay`` is called ``settle``.

With ``alias`` in the configuration it goes by its old name as well.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

from tests.services import lab

_building = threading.Lock()


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(name)
    with _building:
        app = lab.app
        if "settle" not in app.tasks:
            config = json.loads(Path(os.environ["LAB_CONFIG"]).read_text())
            pay = app.tasks["pay"] if config.get("alias") else app.tasks.pop("pay")
            app.register_task(type("settle", (type(pay),), {"name": "settle"})())
    return app
