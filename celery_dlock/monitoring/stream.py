"""Celery's own event stream: ``dlock-acquired``, ``dlock-contended`` and so on.

``celery events`` and custom cameras see them beside the events of tasks; ``uuid`` is the task's id.
A thread publishes them over a connection of its own: a broker that is away holds up no task. What
does not go out waits, as far as there is room, and the oldest of it is dropped first.
"""

from __future__ import annotations

import importlib
import logging
import re
import threading
import time
from collections import deque
from typing import Any, Self

from celery_dlock.core.events import Event, plain
from celery_dlock.monitoring.endings import tell_end

logger = logging.getLogger("celery_dlock")

# Drivers import it when they connect, and once a process is ending it cannot be imported.
importlib.import_module("concurrent.futures.thread")

GROUP = "dlock"

#: Events that wait for the broker, at most; and how many are one message.
ROOM = 10_000
BATCH = 100

#: Seconds: for more events to join the first, until a thread without work ends, between attempts at
#: a broker that is away, and for what is left as the process ends.
GATHER = 0.05
IDLE = 60.0
PAUSE_FIRST, PAUSE_LAST = 0.5, 30.0
LAST_WORDS = 5.0


def type_of(event: Event) -> str:
    """The name of *event* in the stream: ``dlock-timed-out`` for ``TimedOut``."""
    return GROUP + re.sub("([A-Z])", r"-\1", type(event).__name__).lower()


class EventStreamSink:
    """Hands events to the thread that publishes them."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._hostname: str | None = None
        self._waiting: deque[tuple[float, Event]] = deque()
        self._dropped = 0
        # A time limit that strikes as a Condition is entered or left would leave its lock taken.
        self._mutex = threading.RLock()
        self._news = threading.Condition(self._mutex)
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._pause = PAUSE_FIRST

    @classmethod
    def from_app(cls, app: Any) -> Self:
        """One for this process: a forked one has its own."""
        return cls(app)

    def __call__(self, event: Event) -> None:
        if self._hostname is None and (task := self._app.current_worker_task):
            self._hostname = task.request.hostname
        with self._mutex:
            self._keep((time.time(), event))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dlock-events", daemon=True)
                self._thread.start()
                tell_end(self)
            self._news.notify()

    def _keep(self, entry: tuple[float, Event]) -> None:
        if len(self._waiting) >= ROOM:
            self._waiting.popleft()
            self._dropped += 1
        self._waiting.append(entry)

    def at_end(self) -> None:
        """Send what is left."""
        self._ending.set()
        with self._mutex:
            self._news.notify()
            thread = self._thread
        if thread is not None:
            thread.join(LAST_WORDS)

    def _run(self) -> None:
        while True:
            try:
                self._publish_all()
            except Exception as exc:
                logger.warning("the event stream is interrupted: %s", exc)
                if self._ending.wait(self._pause):
                    return
                self._pause = min(self._pause * 2, PAUSE_LAST)
            else:
                return

    def _publish_all(self) -> None:
        """Publish until there has been nothing to do for a while; then the thread is over."""
        with self._app.connection_for_write() as connection:
            out = self._app.events.Dispatcher(
                connection,
                buffer_while_offline=False,
                buffer_group={GROUP},
                buffer_limit=BATCH + 1,
            )
            while self._has_work():
                self._publish(out, self._batch())

    def _has_work(self) -> bool:
        with self._mutex:
            if not (self._waiting or self._ending.is_set()):
                self._news.wait(IDLE)
            if not self._waiting:
                self._thread = None
                return False
        self._ending.wait(GATHER)
        return True

    def _batch(self) -> list[tuple[float, Event]]:
        with self._mutex:
            return [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]

    def _publish(self, out: Any, batch: list[tuple[float, Event]]) -> None:
        if self._hostname is not None:
            out.hostname, out.headers = self._hostname, {"hostname": self._hostname}
        try:
            for at, event in batch:
                fields = plain(event)
                del fields["event"]
                out.send(type_of(event), timestamp=at, uuid=fields.pop("task_id"), **fields)
            out.flush()
            self._pause = PAUSE_FIRST  # the next outage is another one
        except BaseException:
            with self._mutex:
                self._waiting.extendleft(reversed(batch))
            raise
        if self._dropped:
            logger.warning("%s events of locks were dropped from the stream", self._dropped)
            self._dropped = 0
