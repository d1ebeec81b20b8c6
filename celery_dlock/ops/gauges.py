"""How much is held and how much waits, which no single process knows: gauges of the lock store."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery_dlock.errors import DLockError
from celery_dlock.locks.probe import NOBODYS, check_writes
from celery_dlock.ops.overview import lines_in_use
from celery_dlock.ops.urgent import counted
from celery_dlock.runtime import runtime

logger = logging.getLogger("celery_dlock")

#: Seconds for which an answer is good, for all who ask; or so many times as long as it took.
GOOD_FOR = 5.0
REST = 4

#: Seconds for which one of them waits: to hear from the store at all, and for all its keys.
PROBE_TIMEOUT = 2.0
READ_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class Gauges:
    """At one moment: keys that are held, keys and tasks that wait, and the longest wait in seconds
    (0 if nobody waits); messages that have been woken in vain for long; keys that cannot be
    read, and dead letters.
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
        counts, lines = counted(backend, lines_in_use(backend))
        for line in lines:
            counts.add(line)
        waits = 0.0
        if counts.oldest is not None:
            waits = max(0.0, (counts.now - counts.oldest).total_seconds())
        return cls(
            *(counts.held, counts.waited_for, counts.waiting, waits, counts.unanswered),
            unreadable_keys=counts.unreadable,
            dead_messages=backend.count_dead(),
        )


@dataclass(frozen=True, slots=True)
class StoreReport:
    """Whether the store answers and takes writes now, and what was read of it last.

    Of ``gauges`` that is as it was ``age`` seconds ago; both are ``None`` before the first reading
    has ended.
    """

    up: bool
    writable: bool
    gauges: Gauges | None
    age: float | None


class CachedGauges:
    """The gauges of *app* for many who ask: the store is asked once in a while, by one of them.

    Whether it answers is asked apart from how its keys stand: with very many keys that takes longer
    than anybody waits, and what was read before is told meanwhile. Who asks waits *read_timeout*
    seconds for a reading; with ``None`` until it has ended.
    """

    def __init__(self, app: Any, read_timeout: float | None = READ_TIMEOUT) -> None:
        self._app = app
        self._read_timeout = read_timeout
        self._mutex = threading.Lock()
        self._probe = _Background(self._probed)
        self._reading = _Background(self._read)
        self._up = self._writable = False
        self._gauges: Gauges | None = None
        self._read_at = 0.0

    def get(self) -> StoreReport:
        """How the store is. Never raises for it."""
        with self._mutex:
            self._probe.run(PROBE_TIMEOUT)
            up, writable = self._up, self._writable
            if up:
                self._reading.run(self._read_timeout)
            gauges, age = self._gauges, time.monotonic() - self._read_at
            return StoreReport(up, writable, gauges, None if gauges is None else age)

    def _probed(self) -> None:
        self._up = self._writable = False
        locks = runtime(self._app)
        try:
            backend = locks.existing_store()
            backend.look([NOBODYS])
            self._up = True
            check_writes(backend, locks.lease_time(None))
            self._writable = True
        except DLockError as exc:
            trouble = "refuses writes" if self._up else "does not answer"
            logger.warning("the lock store %s: %s", trouble, exc)

    def _read(self) -> None:
        try:
            began = time.monotonic()
            self._gauges = Gauges.of(self._app)
            self._read_at = began
        except DLockError as exc:
            logger.warning("the gauges of the lock store could not be read: %s", exc)


class _Background:
    """Runs *function* in a thread of its own, once at a time and with a rest in between."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self._thread: threading.Thread | None = None
        self._good_until = -math.inf

    def run(self, timeout: float | None) -> None:
        """Run it, unless it runs or has run just now; wait *timeout* seconds for its end."""
        if self._thread is None:
            if time.monotonic() < self._good_until:
                return
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        self._thread.join(timeout)
        if not self._thread.is_alive():
            self._thread = None

    def _run(self) -> None:
        began = time.monotonic()
        try:
            self._function()
        except Exception:
            logger.exception("the lock store could not be asked")
        ended = time.monotonic()
        self._good_until = ended + max(GOOD_FOR, REST * (ended - began))
