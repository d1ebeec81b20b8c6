"""Who publishes: it knows what it sent, and when it saw the task take its place.

``ordered="arrival"`` promises turns in the order in which tasks come to the store. Of two tasks
the first came first for certain when it was seen there before the second was sent.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from celery.utils import uuid
from kombu.exceptions import OperationalError

from celery_dlock.core.state import KeyState
from celery_dlock.errors import BackendUnavailable
from tests.chaos.plan import Key, Sending
from tests.chaos.stage import Stage


@dataclass(slots=True)
class Sent:
    """A task that was sent, first at *at*; seen in the *place* that it has, since *arrived*.

    *times* is how many messages the broker has taken, *lost* how often it has lost one.
    """

    id: str
    key: Key
    args: tuple[Any, ...]
    at: float
    arrived: float | None = None
    place: int | None = None
    times: int = 0
    lost: int = 0

    def before(self, other: Sent) -> bool:
        """Whether this task is promised its turn before *other* has one.

        The one place that knows what a key's order means: with ``ordered="publish"`` it will be
        that of the sending alone.
        """
        return self.arrived is not None and self.arrived < other.at


class Sender:
    """Publishes, again where the broker was away, and follows each task into the store."""

    def __init__(self, stage: Stage) -> None:
        self.sent: list[Sent] = []
        self.again: set[str] = set()
        self._stage = stage
        self._unsent: list[Sent] = []

    def send(self, sending: Sending) -> None:
        args = (sending.key.name, sending.steps, sending.retries)
        sent = Sent(uuid(), sending.key, args, time.monotonic())
        self.sent.append(sent)
        self._unsent.append(sent)
        self.flush()

    def copy(self, number: int) -> None:
        """Send a message again that was sent before, whatever has become of it."""
        if self.sent:
            self._unsent.append(self.sent[number % len(self.sent)])
            self.flush()

    def send_lost(self, ids: set[str]) -> None:
        """Send again what the broker has lost: the first attempt, and if that was not it, the next.

        An attempt that has published the next one is done, and a copy of it is dropped.
        """
        self.again |= ids
        for sent in self.sent:
            if sent.id in ids:
                sent.lost += 1
                self._unsent.append(sent)
        self.flush()

    def flush(self) -> None:
        """Publish what has not been; what the broker does not take is tried again later."""
        while self._unsent:
            sent = self._unsent[0]
            task = self._stage.app.tasks[sent.key.task]
            try:
                attempt = min(max(sent.lost - 1, 0), sent.args[2])
                task.apply_async(sent.args, task_id=sent.id, retries=attempt, retry=False)
            except (OperationalError, ConnectionError):
                return
            self._unsent.pop(0)
            sent.times += 1

    def look(self, done: set[str]) -> None:
        """See who has arrived; *done* are the tasks that need not be looked for any more."""
        for key in {sent.key for sent in self.sent if sent.key.ordered}:
            try:
                state = self._stage.backend.peek(key.name)
            except BackendUnavailable:
                return
            for sent in self.sent:
                if sent.key == key and sent.id not in done:
                    _follow(sent, state)


def _follow(sent: Sent, state: KeyState) -> None:
    entry = next((w for w in state.waiting if w.task.startswith(sent.id)), None)
    if entry is not None:
        if sent.place != entry.arrived:  # anew, or again: it gave up the place it had
            sent.arrived = time.monotonic()
        sent.place = entry.arrived
        return
    turns = [holder.task for holder in state.holders] + [grant.task for grant in state.grants]
    if sent.arrived is None and any(task.startswith(sent.id) for task in turns):
        sent.arrived = time.monotonic()
