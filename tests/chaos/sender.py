"""Who publishes: it knows what it sent, and when it saw the task take its place.

Without ``Ordered()`` promises turns in the order in which tasks come to the store. Of two tasks
the first came first for certain when it was seen there before the second was sent; with
``Ordered()`` when its publishing was over before.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from celery.utils import uuid
from kombu.exceptions import OperationalError

from celery_dlock.core.state import KeyState
from celery_dlock.errors import BackendUnavailable
from tests.chaos.plan import Sending
from tests.chaos.stage import Stage
from tests.chaos.ways import Key, Order


@dataclass(slots=True)
class Sent:
    """A task that was sent, first at *at*; seen in the *place* that it has, since *arrived*.

    *times* is how many messages the broker has taken, *lost* how often it has lost one, *tries* how
    often it was called. The *id* of a call that another one may answer is known when it is
    *published*; a *duplicate* has that of the other. What *follows* another task is published by
    the worker that has run that one.
    """

    id: str
    key: Key
    args: tuple[Any, ...]
    at: float
    arrived: float | None = None
    place: int | None = None
    times: int = 0
    lost: int = 0
    call: int = 0
    tries: int = 0
    published: float | None = None
    duplicate: bool = False
    revoked: bool = False
    follows: Sent | None = None

    @property
    def came(self) -> float | None:
        """Since when it has its place in the order of its key."""
        return self.published if self.key.order is Order.PUBLISHING else self.arrived

    def before(self, other: Sent) -> bool:
        """Whether this task is promised its turn before *other* has one.

        The one place that knows what a key's order means.
        """
        return self.came is not None and self.came < other.at


class Sender:
    """Publishes, again where the broker was away, and follows each task into the store."""

    def __init__(self, stage: Stage) -> None:
        self.sent: list[Sent] = []
        self.again: set[str] = set()
        self._stage = stage
        self._unsent: list[Sent] = []
        self._to_revoke: list[tuple[float, Sent]] = []

    def send(self, sending: Sending) -> None:
        call, at = len(self.sent), time.monotonic()
        args = (sending.key.name, sending.steps, sending.retries, call)
        sent = Sent("" if sending.key.called else uuid(), sending.key, args, at, call=call)
        self.sent.append(sent)
        self._unsent.append(sent)
        if sending.key.chained:
            args = (*args[:3], call + 1)
            self.sent.append(Sent(uuid(), sending.key, args, at, call=call + 1, follows=sent))
        if sending.revoked is not None:
            self._to_revoke.append((at + sending.revoked, sent))
        self.flush()

    @property
    def waits(self) -> bool:
        """Whether something is still to be published."""
        return bool(self._unsent)

    def copy(self, number: int) -> None:
        """Send a message again that was sent before, whatever has become of it.

        A call for which another one may stand has a message only if it is the first.
        """
        sent = [each for each in self.sent if not (each.key.called or each.follows)]
        if sent:
            self._unsent.append(sent[number % len(sent)])
            self.flush()

    def send_lost(self, ids: set[str]) -> None:
        """Send again what the broker has lost: the first attempt, and if that was not it, the next.

        An attempt that has published the next one is done, and a copy of it is dropped. Of calls
        for which one task stands the newest has the arguments.
        """
        self.again |= ids
        for sent in {sent.id: sent for sent in self.sent if sent.id in ids}.values():
            sent.lost += 1
            self._unsent.append(sent)
        self.flush()

    def flush(self) -> None:
        """Publish what has not been; what nobody takes is tried again later."""
        while self._unsent:
            try:
                self._publish(self._unsent[0])
            except (OperationalError, ConnectionError, BackendUnavailable):
                return
            self._unsent.pop(0)

    def _publish(self, sent: Sent) -> None:
        sent.tries += 1
        attempt = min(max(sent.lost - 1, 0), sent.args[2])
        task = self._stage.app.tasks[sent.key.task]
        work = task.si(*sent.args).set(task_id=sent.id or None, retries=attempt)
        for each in self.sent:
            if each.follows is sent:
                work |= task.si(*each.args).set(task_id=each.id)
        result = work.apply_async(retry=False)
        if sent.published is None:
            sent.published = time.monotonic()
            sent.duplicate = sent.key.called and result.is_duplicate
            sent.id = sent.id or result.id
            sent.times += not (sent.duplicate or sent.key.stored)
        else:
            sent.times += 1

    def revoke(self) -> None:
        """Revoke the tasks for which it is time."""
        now = time.monotonic()
        for at, sent in [each for each in self._to_revoke if each[0] <= now]:
            self._to_revoke.remove((at, sent))
            sent.revoked = True
            with suppress(OperationalError, ConnectionError):  # then nobody hears of it
                self._stage.app.control.revoke(sent.id)

    def look(self, done: set[str]) -> None:
        """See who has arrived; *done* are the tasks that need not be looked for any more."""
        for key in {sent.key for sent in self.sent if sent.key.followed}:
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
