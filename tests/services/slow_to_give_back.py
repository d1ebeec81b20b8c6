"""Imported by a worker: its main process gives back what a child held three seconds late."""

import functools
import time
from typing import Any

from celery_dlock.worker.request import LockedRequest

_release = LockedRequest._release


@functools.wraps(_release)
def _late(self: Any) -> bool:
    time.sleep(3.0)
    return _release(self)


LockedRequest._release = _late  # type: ignore[method-assign]
