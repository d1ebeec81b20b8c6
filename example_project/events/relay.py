"""The relay: publishes what has happened, and again what the database does not show as applied.

A broker may lose a message, and the filesystem transport does lose those that a killed worker
had taken. So nobody trusts it: whatever is not applied after a while is published again, under
the same task id. Duplicates are therefore an everyday matter, and the task copes with them.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from example_project.events.generate import OrderEvent

Publish = Callable[[OrderEvent], None]


class Relay:
    """Feeds *events* in their order, at most *window* at a time; *patience* is in seconds."""

    def __init__(
        self,
        events: Sequence[OrderEvent],
        database: Path,
        publish: Publish,
        window: int = 40,
        patience: float = 4.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._events = events
        self._database = database
        self._publish = publish
        self._window = window
        self._patience = patience
        self._clock = clock
        self._next = 0
        self._pending: dict[str, tuple[OrderEvent, float]] = {}
        self.repeated = 0

    @property
    def upcoming(self) -> Sequence[OrderEvent]:
        """The events that have never been published."""
        return self._events[self._next :]

    @property
    def applied(self) -> int:
        """How many events the database shows as applied."""
        return self._next - len(self._pending)

    def tick(self) -> None:
        """Look what has been applied, publish again what is overdue, then what is new."""
        for event_id in self._applied():
            self._pending.pop(event_id, None)
        now = self._clock()
        for event, published in list(self._pending.values()):
            if now - published >= self._patience:
                self.repeated += 1
                self._send(event)
        while len(self._pending) < self._window and self.upcoming:
            self._next += 1
            self._send(self._events[self._next - 1])

    def _send(self, event: OrderEvent) -> None:
        self._publish(event)
        self._pending[event.event_id] = (event, self._clock())

    def _applied(self) -> list[str]:
        with closing(sqlite3.connect(self._database)) as db:
            return [row[0] for row in db.execute("SELECT event_id FROM runs WHERE applied")]


def publish(event: OrderEvent) -> None:
    """Send the task of *event*; its id is the event's."""
    from example_project.events.tasks import apply_event  # needs SHOP_DIR to be decided

    apply_event.apply_async(kwargs=asdict(event), task_id=event.event_id)
