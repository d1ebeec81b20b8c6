"""Imported by a worker: its main process gives back what a child held three seconds late."""

import functools
import time
from typing import Any

from celery_dlock.tasks.request import LockedRequest

_give_back = LockedRequest._give_back


@functools.wraps(_give_back)
def _late(self: Any) -> bool:
    time.sleep(3.0)
    return _give_back(self)


LockedRequest._give_back = _late  # type: ignore[method-assign]
