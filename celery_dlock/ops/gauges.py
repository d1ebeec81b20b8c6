"""How much is held and how much waits, which no single process knows: gauges of the lock store."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import Any

from celery_dlock.errors import DLockError
from celery_dlock.ops.overview import lines_in_use
from celery_dlock.ops.urgent import counted
from celery_dlock.runtime import runtime

logger = logging.getLogger("celery_dlock")

#: Each dead message that is counted is read.
COUNTED = 1000

#: Seconds for which what was found is good, for all who ask, and for which one of them waits.
GOOD_FOR = 5.0
READ_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class Gauges:
    """At one moment: keys that are held, keys and tasks that wait, and the longest wait in seconds
    (0 if nobody waits); messages that have been woken in vain for long, and those that are dead, of
    which a thousand are counted.
    """

    held_keys: int
    waiting_keys: int
    waiting_tasks: int
    oldest_wait: float
    unanswered_messages: int
    unreadable_keys: int
    dead_messages: int

    @classmethod
    def of(cls, app: Any) -> Gauges:
        """Look through all keys in use. Raises :exc:`~celery_dlock.BackendUnavailable`."""
        backend = runtime(app).existing_store()
        found, lines = counted(backend, lines_in_use(backend))
        for line in lines:
            found.add(line)
        waits = 0.0
        if found.oldest is not None:
            waits = max(0.0, (found.now - found.oldest).total_seconds())
        return cls(
            *(found.held, found.waited_for, found.waiting, waits, found.unanswered),
            unreadable_keys=found.unreadable,
            dead_messages=len(backend.dead(COUNTED)),
        )


class CachedGauges:
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
        self._reading.join(READ_TIMEOUT)
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
