"""Order as published: a task takes its place in the queue where it is published.

Celery does all that it does to publish a task: routing, signals, serializing, its own event. Only
where it would hand the message to the broker, the message goes to the lock store, and the next
one goes to the broker: this one at once, if the key is free and nobody waits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded

from celery_dlock.contention import Queueing, policy_named, queueing
from celery_dlock.core.events import Dropped, Parked, Subject, TooLarge
from celery_dlock.core.state import Busy, Drop, End, Park, Run, Same
from celery_dlock.locks.definition import TaskWithLock
from celery_dlock.messages.claims import enqueued
from celery_dlock.messages.envelope import ParkedMessage
from celery_dlock.messages.headers import HISTORY, History, identity_in
from celery_dlock.runtime import runtime

logger = logging.getLogger("celery_dlock")

#: What Celery says of a link, and of each task of a canvas; one that stands alone has neither.
_OF_A_CANVAS = frozenset({"parent_id", "reply_to"})


def ordered_here(task: TaskWithLock) -> Queueing | None:
    """What *task* asks of the queue, if it takes its place where it is published.

    The settings as a whole are not read: a process that publishes only other tasks needs no lock
    store.
    """
    conf = task.app.conf
    policy = task.lock_definition.policy or conf.get("dlock_on_contention")
    asks = queueing(policy_named(policy)) if policy else None
    return asks if asks and asks.at_publish and not conf.task_always_eager else None


def goes_on(app: Any, options: Mapping[str, Any]) -> bool:
    """Whether a worker publishes with these *options* what follows in a chain, a link or a chord.

    A canvas that a body publishes looks the same.
    """
    return app.current_worker_task is not None and not options.keys().isdisjoint(_OF_A_CANVAS)


class Outbox:
    """Stands where Celery expects a producer, and leaves the task's message with the store.

    Raises :exc:`~celery_dlock.BackendUnavailable` when the store does not answer. Nothing was sent
    then; to publish again under the same task id is safe, should the store have it nevertheless.
    Where a canvas *goes on* with the task, nobody could: it goes by the broker.
    """

    def __init__(
        self, task: TaskWithLock, asks: Queueing, producer: Any, *, goes_on: bool = False
    ) -> None:
        self._task = task
        self._asks = asks
        self._producer = producer
        self._goes_on = goes_on

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, **options: Any) -> Any:
        """What the store does not take is published as usual: a worker does what the policy says.

        So is all that does not take its place now, and Celery's event about the task.
        """
        if not _takes_place(body, options["headers"]) or not self._left(body, options):
            return self._producer.publish(body, **options)

    def _left(self, body: tuple[Any, ...], options: dict[str, Any]) -> bool:
        """Whether the store has the message; not where it cannot and a canvas has to go on."""
        try:
            return self._leave(body, options)
        except SoftTimeLimitExceeded:
            raise
        except Exception as exc:
            # Celery would take it for a failure of the task before, which has succeeded.
            if not self._goes_on:
                raise
            _tell_by_broker(self._task.name, exc)
            return False

    def _leave(self, body: tuple[Any, ...], options: dict[str, Any]) -> bool:
        """Whether the store has the message."""
        here, definition = runtime(self._task.app), self._task.lock_definition
        who, key = identity_in(options["headers"]), definition.keys(body[0], body[1]).own[0]
        subject = Subject(options["headers"]["id"], self._task.name, definition.label)
        history = History(who, since=time.time(), carried=here.sinks.carry(subject))
        options["headers"][HISTORY] = history.header()
        message = ParkedMessage.of_publish(here.wake.broker, key, who, body, options).encode({})
        if len(message) > here.backend.largest_message:
            here.sinks.emit(TooLarge(subject, len(message)))
            return False
        self._declare(options)
        reply = here.backend.enter(enqueued(definition, self._asks, key, who), message)
        match reply.verdict:
            case Park():
                here.sinks.emit(Parked(subject, key, refused=False))
            case Drop(reason=reason):
                here.sinks.emit(Dropped(subject, key, reason))
            case Busy() | Run() | Same() | End():
                pass  # it is full; the others are answers to those who ask for the key
        # Over this very connection: another one of the pool may never be free.
        here.wake(reply.wakes, self._producer)
        return isinstance(reply.verdict, Park | Drop)

    def _declare(self, options: Mapping[str, Any]) -> None:
        """Where a process that wakes the task later finds its queue."""

        def declare() -> None:
            for entity in options.get("declare") or ():
                self._producer.maybe_declare(entity)

        if options.get("retry"):
            connection, policy = self._producer.connection, options.get("retry_policy") or {}
            declare = connection.ensure(self._producer, declare, **policy)
        declare()


def _takes_place(body: Any, headers: Mapping[str, Any]) -> bool:
    """Only a task that is to run now; a retry, and what we publish again later, had its place.

    Celery's events, and tasks of message protocol 1, are no tuples.
    """
    return isinstance(body, tuple) and not (headers.get("eta") or headers.get("retries"))


_gone_by_broker: set[str] = set()


def _tell_by_broker(name: str, exc: Exception) -> None:
    """Once for a task."""
    if name not in _gone_by_broker:
        _gone_by_broker.add(name)
        logger.warning(
            "%s follows in a canvas and could not take its place (%r): it goes by the broker, and "
            "takes its place as it arrives",
            name,
            exc,
        )
