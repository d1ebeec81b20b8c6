"""How much is held and how much waits, which no single process knows: gauges of the lock store."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery_dlock.beat.leader import key_of
from celery_dlock.errors import BackendUnavailable, DLockError
from celery_dlock.locks.probe import NOBODYS, check_writes
from celery_dlock.ops.overview import instant, lines_in_use, look, time_of
from celery_dlock.ops.urgent import counted
from celery_dlock.runtime import runtime
from celery_dlock.stores.base import NoteStore

logger = logging.getLogger("celery_dlock")

#: Seconds for which an answer is good, for all who ask; or so many times as long as it took.
GOOD_FOR = 5.0
REST = 4

#: Seconds for which one of them waits: to hear from the store at all, and for all its keys.
PROBE_TIMEOUT = 2.0
READ_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class Gauges:
    """At one moment: keys that are held, and for how many seconds the first (0 if none is); keys
    and tasks that wait, and the longest wait (0 if nobody waits); messages that have been woken in
    vain for long; keys that cannot be read, and dead letters.
    """

    held_keys: int
    oldest_hold: float
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

        def age(instant: datetime | None) -> float:
            return max(0.0, (counts.now - (instant or counts.now)).total_seconds())

        return cls(
            held_keys=counts.held,
            oldest_hold=age(counts.oldest_hold),
            waiting_keys=counts.waited_for,
            waiting_tasks=counts.waiting,
            oldest_wait=age(counts.oldest),
            unanswered_messages=counts.unanswered,
            unreadable_keys=counts.unreadable,
            dead_messages=backend.count_dead(),
        )


@dataclass(frozen=True, slots=True)
class StoreReport:
    """Whether the store answers and takes writes now, and what was read of it last.

    ``beat_leads`` is ``None`` for an application whose beat is not led, and where that is unknown.
    ``gauges`` is as it was ``age`` seconds ago; both are ``None`` before the first reading has
    ended.
    """

    up: bool
    writable: bool
    beat_leads: bool | None
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
        self._beat_leads: bool | None = None
        self._gauges: Gauges | None = None
        self._read_at = 0.0

    def get(self) -> StoreReport:
        """How the store is. Never raises for it."""
        with self._mutex:
            self._probe.run(PROBE_TIMEOUT)
            up, writable, beat_leads = self._up, self._writable, self._beat_leads
            if up:
                self._reading.run(self._read_timeout)
            gauges, age = self._gauges, time.monotonic() - self._read_at
            read = None if gauges is None else age
            return StoreReport(up, writable, beat_leads, gauges, read)

    def _probed(self) -> None:
        self._up = self._writable = False
        self._beat_leads = None
        locks, trouble = runtime(self._app), "does not answer"
        try:
            backend = locks.existing_store()
            backend.look([NOBODYS])
            self._up, trouble = True, "refuses writes"
            check_writes(backend, locks.lease_time(None))
            self._writable, trouble = True, "does not say whether a beat leads"
            self._beat_leads = beat_leads(self._app)
        except DLockError as exc:
            logger.warning("the lock store %s: %s", trouble, exc)

    def _read(self) -> None:
        try:
            began = time.monotonic()
            self._gauges = Gauges.of(self._app)
            self._read_at = began
        except DLockError as exc:
            logger.warning("the gauges of the lock store could not be read: %s", exc)


def beat_leads(app: Any) -> bool | None:
    """Whether a beat of *app* leads; ``None`` if its beat is not led: no setting says so, and none
    has recorded a tick.

    Raises :exc:`~celery_dlock.BackendUnavailable`.
    """
    backend, key = runtime(app).existing_store(), key_of(app)
    (state,) = look(backend, [key])
    if isinstance(state, BackendUnavailable):  # of this key alone: nobody can lead by it
        return False
    now = time_of(backend)
    if any(instant(holder.expires) > now for holder in state.holders):
        return True
    scheduler = str(app.conf.beat_scheduler)
    is_ours = scheduler == "dlock" or scheduler.startswith("celery_dlock.")
    has_led = isinstance(backend, NoteStore) and bool(backend.notes(key))
    return False if is_ours or has_led else None


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
