"""The sink that keeps every event in a database, and never lets a task wait for it.

An event is put into a queue in memory. One thread writes what is there, twice a second, and ends
when there is nothing to write; a process that comes to its end waits for it a little. A database
that is away is tried again, and the events wait: when they become too many, the oldest are gone,
and a row says how many. So this is what happened, for people to read, and no ledger.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections import deque
from itertools import count
from typing import Any, Self
from weakref import WeakSet

from celery_dlock.core.events import Event
from celery_dlock.monitoring.endings import tell_end
from celery_dlock.monitoring.history_table import open_engine, said
from celery_dlock.monitoring.history_writer import Noted, Writer
from celery_dlock.settings import HistoryOptions, Settings

logger = logging.getLogger("celery_dlock")

#: Events that wait in memory at the most.
BOUND = 10_000
#: How many are written at once, and after how many seconds if they are fewer.
BATCH = 500
EVERY = 0.5
#: Seconds between two attempts while the database is away; they double from ``EVERY``.
LAST_PAUSE = 10.0
#: After so many seconds without events thread and connection are given back.
IDLE = 30.0
#: How many seconds a process that ends waits for its last events to be written.
LAST_WORDS = 3.0


class HistorySink:
    """Writes events to the database of *options*; ``dlock_history`` is the setting for it."""

    def __init__(self, options: HistoryOptions) -> None:
        self._keep = options.keep
        self._engine = open_engine(options.url)
        self._last = 0
        self._begin()
        _sinks.add(self)

    @classmethod
    def from_app(cls, app: Any) -> Self:
        """The sink for the database that ``dlock_history`` names.

        Raises :exc:`~celery_dlock.ConfigurationError` for one that cannot be. It does not connect.
        """
        options = Settings.from_conf(app.conf).history
        assert options is not None, "dlock_history is not set"
        return cls(options)

    def __call__(self, event: Event) -> None:
        with self._mutex:
            self._put(event)
            if self._thread is None:
                self._start()
            full = len(self._queue) == BATCH
        if full:
            self._hurry.set()

    def at_end(self) -> None:
        """Have written what is left."""
        self.flush(LAST_WORDS)

    def flush(self, timeout: float) -> None:
        """Have written what is there, and the connection given back, in *timeout* seconds."""
        with self._mutex:
            thread, self._ending = self._thread, True
        if thread is not None:
            self._hurry.set()
            thread.join(timeout)

    def after_fork_in_child(self) -> None:
        """Begin anew: what waits is the parent's to write, and so is the connection's end."""
        _of_parents.append(self._engine.pool)
        self._engine.dispose(close=False)
        self._begin()

    def _begin(self) -> None:
        # A signal's handler may come between, and have something to tell itself.
        self._mutex = threading.RLock()
        self._queue: deque[Noted] = deque()
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None
        self._writer = Writer(self._engine, secrets.randbits(62), self._keep)
        self._numbers = count(1)
        self._dropped = 0
        self._ending = False
        self._away = False

    # Under the mutex.

    def _put(self, event: Event) -> None:
        """In the order of its instants, which are all different."""
        self._last = max(time.time_ns() // 1000, self._last + 1)
        self._queue.append((self._last, next(self._numbers), event))
        self._shorten()

    def _shorten(self) -> None:
        while len(self._queue) > BOUND:
            self._queue.popleft()
            self._dropped += 1

    def _start(self) -> None:
        self._ending = False
        tell_end(self)
        self._thread = threading.Thread(target=self._run, name="celery-dlock-history", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            if not self._thread.is_alive():
                self._thread = None  # the next event tries again
            raise

    # In the thread.

    def _run(self) -> None:
        busy, pause = time.monotonic(), EVERY
        while True:
            self._hurry.wait(pause)
            self._hurry.clear()
            if self._queue:
                busy = time.monotonic()
            ending = self._ending
            written = self._write_all()
            pause = EVERY if written else min(2 * pause, LAST_PAUSE)
            if ending or time.monotonic() - busy > IDLE:
                self._engine.dispose()
                if self._is_over(given_up=not written):
                    return

    def _is_over(self, *, given_up: bool) -> bool:
        with self._mutex:
            if self._queue and not given_up:
                return False
            if self._queue:
                logger.warning("%d events of locks are not in the history", len(self._queue))
                self._queue.clear()
            self._thread = None
            return True

    def _write_all(self) -> bool:
        """Whether nothing was left to write."""
        while True:
            batch, missing = self._take()
            if not batch:
                return True
            try:
                self._writer.write(batch, missing)
            except Exception as exc:  # the thread goes on, whatever a driver raises
                self._put_back(batch, missing)
                if not self._away:
                    kept = f"events wait in memory, up to {BOUND}"
                    logger.warning("the history cannot be written, %s: %s", kept, said(exc))
                self._away = True
                return False
            if self._away:
                logger.warning("the history is written again")
            if missing:
                logger.warning("%d events of locks are not in the history", missing)
            self._away = False
            self._writer.delete_old()

    def _take(self) -> tuple[list[Noted], int]:
        """The first that wait, and how many are missing before them."""
        with self._mutex:
            missing, self._dropped = self._dropped, 0
            return [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))], missing

    def _put_back(self, batch: list[Noted], missing: int) -> None:
        with self._mutex:
            self._dropped += missing
            self._queue.extendleft(reversed(batch))
            self._shorten()


_sinks: WeakSet[HistorySink] = WeakSet()

#: Connections of the process that was forked. To close one would speak over it.
_of_parents: list[object] = []


def _after_fork_in_child() -> None:
    for sink in list(_sinks):
        sink.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
