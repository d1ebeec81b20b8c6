"""An application whose locks are inside the process, for as long as a test lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery_dlock.tasks.runtime import forget, keep_in_memory
from celery_dlock.testing.clock import ManualClock


@contextmanager
def in_memory(app: Any) -> Iterator[ManualClock]:
    """Have *app* take its locks on a ``memory://`` of its own, whatever ``dlock_url`` says.

    The clock is the store's: a lease ends there, and who waits is called, when the test moves it.
    Afterwards the application goes back to its configuration, which is never touched. Raises
    :exc:`~celery_dlock.ConfigurationError` for one that is wrong.
    """
    clock = ManualClock()
    keep_in_memory(app, clock)
    try:
        yield clock
    finally:
        forget(app)
