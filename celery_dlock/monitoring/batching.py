"""What a sink sends is sent in batches, by a thread of its own, so that no task waits for it.

A bounded queue in memory; a thread that starts with the first item, and ends when there has been
nothing to do for a while; a flush as the process ends; a fresh start in a child that is forked.
What cannot be written is tried again, and the oldest are dropped and counted when too many wait.
"""

from __future__ import annotations

import atexit
import logging
import math
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from celery import signals

from celery_dlock import forking

logger = logging.getLogger("celery_dlock")

T = TypeVar("T")


class Batcher(ABC, Generic[T]):
    """A sink's queue and thread; a sink overrides the attributes that it wants otherwise.

    :meth:`put` may be called by a signal's handler that interrupts it.
    """

    #: What it writes, for the log.
    name = ""

    #: Items that wait, at most; and how many are written at once.
    room = 10_000
    batch = 500

    #: Seconds for more items to join the first, and until a thread without work ends.
    gather = 0.5
    idle = 60.0

    #: Seconds between attempts that fail: they double from the first to the last.
    first_pause, last_pause = 0.5, 30.0

    #: Seconds for what is left as the process ends.
    exit_timeout = 5.0

    def __init__(self) -> None:
        self._begin()
        forking.tell(self)

    @abstractmethod
    def write(self, batch: Sequence[T], missing: int) -> None:
        """Write *batch*, before which so many are *missing*. If it raises, all is tried again."""

    def close(self) -> None:
        """Give back what is open, after a failure and when there is nothing to do."""

    def error_text(self, exc: Exception) -> str:
        """An error of :meth:`write`, for the log."""
        return f"{type(exc).__name__}: {exc}"

    def put(self, item: T) -> None:
        """Have *item* written soon."""
        with self._mutex:
            self._queue.append(item)
            self._shorten()
            if self._thread is None:
                self._start()
            elif len(self._queue) >= self._awaited:
                self._news.notify()

    def at_exit(self) -> None:
        """Have written what is left: the process ends."""
        self.flush(self.exit_timeout)

    def flush(self, timeout: float) -> None:
        """Have written what is there, and the thread ended, in *timeout* seconds."""
        with self._mutex:
            thread, self._ending = self._thread, True
            self._news.notify()
        if thread is not None:
            thread.join(timeout)

    def after_fork_in_child(self) -> None:
        """Begin anew: what waits is the parent's to write, and its thread is not here."""
        self._begin()

    def _begin(self) -> None:
        # A time limit that strikes as a Condition is entered or left would leave its lock taken,
        # so it is the mutex that is entered.
        self._mutex = threading.RLock()
        self._news = threading.Condition(self._mutex)
        self._awaited: float = math.inf  # as many in the queue are news to the thread
        self._queue: deque[T] = deque()
        self._missing = 0
        self._thread: threading.Thread | None = None
        self._ending = False
        self._pause = 0.0  # before the next attempt, after one that failed

    # Under the mutex.

    def _shorten(self) -> None:
        while len(self._queue) > self.room:
            self._queue.popleft()
            self._missing += 1

    def _start(self) -> None:
        self._ending = False
        call_at_exit(self)
        name = f"dlock-{type(self).__name__}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except BaseException:
            if not self._thread.is_alive():
                self._thread = None  # the next item tries again
            raise

    # In the thread.

    def _run(self) -> None:
        while self._has_work():
            last = self._ending
            if not self._write_all() and last:
                self._give_up()

    def _has_work(self) -> bool:
        """Wait for something to write, and for more to join it or the time of the next attempt.

        Without anything for a while the thread is over.
        """
        self._wait(1, self.idle)
        if self._queue:
            self._wait(math.inf if self._pause else self.batch, self._pause or self.gather)
            return True
        self._close()
        with self._mutex:
            if not self._queue:
                self._thread = None
            return self._thread is not None

    def _wait(self, items: float, seconds: float) -> None:
        """Until there are as many *items*, or the process ends; no longer than *seconds*."""
        with self._mutex:
            if len(self._queue) < items and not self._ending:
                self._awaited = items
                self._news.wait(seconds)
                self._awaited = math.inf

    def _write_all(self) -> bool:
        """Whether nothing was left to write."""
        while True:
            with self._mutex:
                missing, self._missing = self._missing, 0
                batch = [self._queue.popleft() for _ in range(min(self.batch, len(self._queue)))]
            if not batch:
                return True
            try:
                self.write(batch, missing)
            except Exception as exc:  # the thread goes on, whatever a driver raises
                with self._mutex:
                    self._missing += missing
                    self._queue.extendleft(reversed(batch))
                    self._shorten()
                self._close()
                if not self._pause:
                    kept = f"events wait in memory, up to {self.room}"
                    logger.warning(
                        "%s cannot be written, %s: %s", self.name, kept, self.error_text(exc)
                    )
                self._pause = min(2 * self._pause or self.first_pause, self.last_pause)
                return False
            if self._pause:
                logger.warning("%s can be written again", self.name)
            self._pause = 0.0
            if missing:
                logger.warning("%d events of locks are missing in %s", missing, self.name)

    def _give_up(self) -> None:
        with self._mutex:
            logger.warning("%d events of locks are missing in %s", len(self._queue), self.name)
            self._queue.clear()

    def _close(self) -> None:
        with suppress(Exception):  # it is given up in any case
            self.close()


class FlushesAtExit(Protocol):
    """A sink with something to send; in a forked child it has nothing at first."""

    def at_exit(self) -> None:
        """Send it, within a moment."""


_open: WeakSet[FlushesAtExit] = WeakSet()


def call_at_exit(sink: FlushesAtExit) -> None:
    """Have ``sink.at_exit()`` called as this process ends."""
    _open.add(sink)


def end(**_: Any) -> None:
    """Have all of them send what is left: this process ends."""
    for sink in list(_open):
        try:
            sink.at_exit()
        except Exception:  # the others have something to send, too
            logger.exception("events that %r had not sent are lost", sink)


# A prefork child says that it ends by a signal of Celery and leaves without Python's own way out.
signals.worker_process_shutdown.connect(end, weak=False)
atexit.register(end)
