"""Order as published: a task takes its place in the queue where it is published.

Celery does all that it does to publish a task: routing, signals, serializing, its own event. Only
where it would hand the message to the broker, the message goes to the lock store, and who is next
goes to the broker: this one at once, if the key is free and nobody waits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kombu.serialization import dumps

from celery_dlock.contention import Queueing, policy_named, queueing
from celery_dlock.core.events import Dropped, Parked, Subject, TooLarge
from celery_dlock.core.state import Busy, Claim, Drop, End, Park, Run, Same, Wait
from celery_dlock.tasks.claims import queued
from celery_dlock.tasks.entry import Entry
from celery_dlock.tasks.history import HISTORY, History, identity_in
from celery_dlock.tasks.runtime import runtime

if TYPE_CHECKING:
    from celery_dlock.tasks.execution import Execution
    from celery_dlock.tasks.task import LockedTask

logger = logging.getLogger("celery_dlock")

#: What Celery hands a producer beside the properties of the message.
_NO_PROPERTIES = frozenset(
    {
        *("exchange", "routing_key", "serializer", "compression", "headers", "declare"),
        *("content_type", "content_encoding", "expiration", "mandatory", "immediate"),
        *("retry", "retry_policy", "timeout", "confirm_timeout"),
    }
)


def ordered_here(task: LockedTask) -> Queueing | None:
    """What *task* asks of the queue, if it takes its place where it is published.

    Read without the settings as a whole: who publishes other tasks only needs no lock store.
    """
    conf = task.app.conf
    policy = task.lock_definition.policy or conf.get("dlock_on_contention")
    asks = queueing(policy_named(policy)) if policy else None
    return asks if asks and asks.at_publish and not conf.task_always_eager else None


class Outbox:
    """Stands where Celery expects a producer, and leaves the task's message with the store.

    Raises :exc:`~celery_dlock.BackendUnavailable` when the store does not answer. Nothing was sent
    then; to publish again under the same task id is safe, should the store have it nevertheless.
    """

    def __init__(self, task: LockedTask, asks: Queueing, producer: Any) -> None:
        self._task = task
        self._asks = asks
        self._producer = producer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, **options: Any) -> Any:
        """What the store does not take is published as usual: a worker does what the policy says.

        So is all that does not take its place now, and Celery's event about the task.
        """
        if not _takes_place(body, options["headers"]) or not self._leave(body, options):
            return self._producer.publish(body, **options)

    def _leave(self, body: tuple[Any, ...], options: dict[str, Any]) -> bool:
        """Whether the store has the message."""
        here, definition = runtime(self._task.app), self._task.lock_definition
        who, key = identity_in(options["headers"]), definition.keys(body[0], body[1]).own[0]
        subject = Subject(options["headers"]["id"], self._task.name, definition.label)
        history = History(who, since=time.time(), carried=here.sinks.carry(subject))
        options["headers"][HISTORY] = history.header()
        message = _entry(here.wake.broker, key, who, body, options).encode({})
        if len(message) > here.backend.largest_message:
            here.sinks.emit(TooLarge(subject, len(message)))
            return False
        self._declare(options)
        reply = here.backend.enter(self._claim(key, who), message)
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
        """Whoever calls the message later finds its queue there."""

        def declare() -> None:
            for entity in options.get("declare") or ():
                self._producer.maybe_declare(entity)

        if options.get("retry"):
            connection, policy = self._producer.connection, options.get("retry_policy") or {}
            declare = connection.ensure(self._producer, declare, **policy)
        declare()

    def _claim(self, key: str, who: str) -> Claim:
        mode, limit = self._task.lock_definition.mode, self._task.lock_definition.limit
        nobody = Claim(key, who, nonce="", ttl=0, mode=mode, limit=limit)  # who asks for a turn
        return queued(nobody, self._asks, Wait.ENQUEUE)


def _takes_place(body: Any, headers: Mapping[str, Any]) -> bool:
    """Only a task that is to run now; a retry, and what we publish again later, had its place.

    Celery's events, and tasks of message protocol 1, are no tuples.
    """
    return isinstance(body, tuple) and not (headers.get("eta") or headers.get("retries"))


def _entry(broker: str, key: str, who: str, body: Any, options: Mapping[str, Any]) -> Entry:
    serialized: Any = dumps(body, serializer=options.get("serializer"))  # type: ignore[no-untyped-call]
    content_type, content_encoding, data = serialized
    compression = options.get("compression")
    exchange = options.get("exchange")
    return Entry(
        broker=broker,
        key=key,
        task=who,
        exchange=getattr(exchange, "name", exchange) or "",
        routing_key=options.get("routing_key") or "",
        content_type=content_type,
        content_encoding=content_encoding,
        headers={**options["headers"], **({"compression": compression} if compression else {})},
        properties={n: v for n, v in options.items() if n not in _NO_PROPERTIES and v is not None},
        body=data if isinstance(data, bytes) else data.encode(),
    )


_told: set[str] = set()


def note_arrival(execution: Execution) -> None:
    """Say once for a task that its order is that of arrival, where it should be another."""
    asks, request, name = execution.asks, execution.request, execution.task.name
    if asks is None or not asks.at_publish or name in _told:
        return
    took_place = request.get(HISTORY) is not None
    if not (took_place or request.eta or request.retries):
        _told.add(name)
        logger.warning(
            "%s is to run in the order of publishing, but %s was published by its name alone, or "
            "over a connection of its own: it takes its place as it arrives. Declare the task "
            "where it is published, and publish through it",
            name,
            request.id,
        )
