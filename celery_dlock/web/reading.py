"""What a page reads of the store: always a bounded part, however much there is.

What costs more, such as the list of queues, of which all have to be looked at to find the oldest
wait, is read once for all visitors, and again when it is two seconds old.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from celery_dlock.errors import BackendUnavailable

T = TypeVar("T")

#: Keys on a page, queues in the list of queues, and dead messages.
ROWS = 50

#: Seconds for which the list of queues is good.
FRESH = 2.0


class Shared(Generic[T]):
    """What *read* found, for as long as it is fresh. One reads it anew while others get the old.

    That the store did not answer is good for as long, or all would wait for it one after another.
    """

    def __init__(self, read: Callable[[], T], fresh: float = FRESH) -> None:
        self._read = read
        self._fresh = fresh
        self._reading = threading.Lock()
        self._until = 0.0
        self._found: T | BackendUnavailable | None = None

    def get(self) -> T:
        """Raises :exc:`~celery_dlock.BackendUnavailable` as reading did."""
        old = self._found
        if time.monotonic() >= self._until:
            nothing = old is None or isinstance(old, BackendUnavailable)
            if self._reading.acquire(blocking=nothing):
                try:
                    self._read_anew()
                finally:
                    self._reading.release()
        found = self._found
        if isinstance(found, BackendUnavailable):
            raise BackendUnavailable(str(found))
        assert found is not None
        return found

    def _read_anew(self) -> None:
        if time.monotonic() < self._until:
            return  # another one has, while this one waited
        try:
            self._found = self._read()
        except BackendUnavailable as exc:
            self._found = exc
        self._until = time.monotonic() + self._fresh
