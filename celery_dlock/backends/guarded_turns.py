"""Threads of one process wait for each other, rather than overtake each other again and again.

Of forty that read a key and commit at once, one succeeds, and the others have read in vain; some
never get through. It is no lock of the key: whoever waits too long goes on without.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import TypeVar

from celery_dlock.core.backoff import CHANCE
from celery_dlock.errors import BackendUnavailable

T = TypeVar("T")

#: Keys share so many locks.
_LOCKS = 64

#: The longest pause between two attempts, in seconds.
_PAUSE = 0.05


class Turns:
    """One turn a key, within this process."""

    def __init__(self) -> None:
        self._pid, self._locks = os.getpid(), _new_locks()

    def until_committed(self, key: str, attempt: Callable[[], T | None], patience: float) -> T:
        """What *attempt* returns, made again for *patience* seconds if others are faster.

        Raises :exc:`~celery_dlock.errors.BackendUnavailable` if they always are.
        """
        with self.at(key, patience):
            give_up = time.monotonic() + patience
            for failed in count():
                done = attempt()
                if done is not None:
                    return done
                if time.monotonic() > give_up:
                    raise BackendUnavailable(f"{key!r} is changed by others without a pause")
                time.sleep(CHANCE.uniform(0, min(_PAUSE, 0.001 * 2**failed)))
        raise AssertionError("unreachable")

    @contextmanager
    def at(self, key: str, patience: float) -> Iterator[None]:
        """Wait for it, but no more than *patience* seconds."""
        if self._pid != os.getpid():  # a thread of the parent may have had its turn at the fork
            self._pid, self._locks = os.getpid(), _new_locks()
        lock = self._locks[hash(key) % _LOCKS]
        try:  # around it, for a time limit may strike between the two
            lock.acquire(timeout=patience)
            yield
        finally:
            with suppress(RuntimeError):  # it was not our turn
                lock.release()


def _new_locks() -> list[threading.RLock]:
    """Of a kind that knows whose turn it is."""
    return [threading.RLock() for _ in range(_LOCKS)]
