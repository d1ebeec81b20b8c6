"""Waiting for a condition, with a deadline; the tests have no other way to wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(what: str | Callable[[], str], condition: Callable[[], T], timeout: float = 60.0) -> T:
    """What *condition* returns as soon as it is true; fails with *what* when time is over.

    That may be called for, where it tells what there is instead.
    """
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            told = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {timeout:g} s: {told}")
        pause.wait(0.02)
