"""Celery's own event stream: ``dlock-acquired``, ``dlock-contended`` and so on.

``celery events`` and custom cameras see them beside the events of tasks; ``uuid`` is the task's id.
They go over a connection of their own: a broker that is unavailable holds up no task.
"""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Sequence
from typing import Any, Self

from celery_dlock.core.events import Event, plain
from celery_dlock.monitoring.batching import Batcher

# Drivers import it when they connect, and once a process is ending it cannot be imported.
importlib.import_module("concurrent.futures.thread")

GROUP = "dlock"

#: When it happened, and what.
Noted = tuple[float, Event]


def type_of(event: Event) -> str:
    """The name of *event* in the stream: ``dlock-timed-out`` for ``TimedOut``."""
    return GROUP + re.sub("([A-Z])", r"-\1", type(event).__name__).lower()


class EventStreamSink(Batcher[Noted]):
    """Publishes events; one that is published twice is seen twice."""

    name = "the event stream"
    batch = 100  # events in a message
    gather = 0.05

    def __init__(self, app: Any) -> None:
        super().__init__()
        self._app = app
        self._hostname: str | None = None

    def _begin(self) -> None:
        super()._begin()
        self._out: Any = None

    @classmethod
    def from_app(cls, app: Any) -> Self:
        """One for this process: a forked one has its own."""
        return cls(app)

    def __call__(self, event: Event) -> None:
        if self._hostname is None and (task := self._app.current_worker_task):
            self._hostname = task.request.hostname
        self.put((time.time(), event))

    def write(self, batch: Sequence[Noted], missing: int) -> None:
        """Publish *batch* as one message."""
        out = self._out
        if out is None:
            out = self._out = self._app.events.Dispatcher(
                self._app.connection_for_write(),
                buffer_while_offline=False,
                buffer_group={GROUP},
                buffer_limit=self.batch + 1,
            )
        if self._hostname is not None:
            out.hostname, out.headers = self._hostname, {"hostname": self._hostname}
        for at, event in batch:
            fields = plain(event)
            del fields["event"]
            out.send(type_of(event), timestamp=at, uuid=fields.pop("task_id"), **fields)
        out.flush()

    def close(self) -> None:
        """Give back the connection."""
        out, self._out = self._out, None
        if out is not None:
            out.connection.release()
