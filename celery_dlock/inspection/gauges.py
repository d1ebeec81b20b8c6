"""How much is locked and how much waits, over all keys: numbers that no single process knows."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery_dlock.backends.base import LockBackend
from celery_dlock.errors import DLockError
from celery_dlock.inspection.overview import lines_in_use, time_of
from celery_dlock.tasks.runtime import runtime

logger = logging.getLogger("celery_dlock")

#: Each dead message that is counted is read.
COUNTED = 1000

#: Seconds for which what was found is good, for all who ask, and for which one of them waits.
GOOD_FOR = 5.0
PATIENCE = 5.0


@dataclass(frozen=True, slots=True)
class Gauges:
    """At one moment: keys that are held, messages that wait, and the wait of the oldest of them in
    seconds (0 if none waits); messages that are dead, of which a thousand are counted.
    """

    held_keys: int
    waiting_keys: int
    waiting_messages: int
    oldest_wait: float
    dead_messages: int

    @classmethod
    def of(cls, app: Any) -> Gauges:
        """Look through all keys in use. Raises :exc:`~celery_dlock.BackendUnavailable`."""
        return _of(runtime(app).existing_store())


def _of(backend: LockBackend) -> Gauges:
    held = keys = messages = 0
    oldest: datetime | None = None
    for line in lines_in_use(backend):
        held += bool(line.holders)
        keys += bool(line.waiting)
        messages += line.waiting
        if line.oldest is not None:
            oldest = line.oldest if oldest is None else min(oldest, line.oldest)
    waits = 0.0 if oldest is None else max(0.0, (time_of(backend) - oldest).total_seconds())
    return Gauges(held, keys, messages, waits, len(backend.dead(COUNTED)))


class Watch:
    """The gauges of *app* for many who ask: the store is asked once in a while, by one of them."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._mutex = threading.Lock()
        self._good_until = 0.0
        self._found: Gauges | None = None
        self._reading: threading.Thread | None = None

    def get(self) -> Gauges | None:
        """The gauges, ``None`` while the store does not answer or takes too long."""
        with self._mutex:
            if time.monotonic() >= self._good_until:
                self._look()
            return self._found

    def _look(self) -> None:
        if self._reading is None:
            self._found = None
            self._reading = threading.Thread(target=self._read, daemon=True)
            self._reading.start()
        self._reading.join(PATIENCE)
        if not self._reading.is_alive():
            self._reading = None
            self._good_until = time.monotonic() + GOOD_FOR

    def _read(self) -> None:
        try:
            self._found = Gauges.of(self._app)
        except DLockError as exc:
            logger.warning("the gauges of the lock store are not known: %s", exc)
        except Exception:
            logger.exception("the gauges of the lock store are not known")
