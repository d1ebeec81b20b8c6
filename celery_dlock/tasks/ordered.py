"""Order as published: a task takes its place in the queue where it is published.

Celery does all that it does to publish a task: routing, signals, serializing, its own event. Only
where it would hand the message to the broker, the message goes to the lock store, and who is next
goes to the broker: this one at once, if the key is free and nobody waits.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kombu.serialization import dumps

from celery_dlock.contention import Queueing, policy_named, queueing
from celery_dlock.core.events import Dropped, Parked, Subject, TooLarge
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim, Drop, Park, Wait
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


def takes_place(task: LockedTask, task_id: str | None, options: Mapping[str, Any]) -> bool:
    """Whether a task that is published with *options* takes its place in the queue now.

    One with a countdown does when it is due. A retry, and what the library publishes again, has
    had its place.
    """
    policy = task.lock_definition.policy or task.app.conf.get("dlock_on_contention")
    asks = queueing(policy_named(policy)) if policy else None
    if asks is None or not asks.at_publish or task.app.conf.task_always_eager:
        return False
    if options.get("countdown") or options.get("eta") or options.get("retries"):
        return False
    past = (options.get("headers") or {}).get(HISTORY) or {}
    nesting = options.get("replaced_task_nesting") or 0
    return task_id is None or past.get("task") != f"{task_id}:0:{nesting}"


class Outbox:
    """Stands where Celery expects a producer, and leaves the task's message with the store.

    Raises :exc:`~celery_dlock.BackendUnavailable` when the store does not answer. Nothing was sent
    then; to publish again under the same task id is safe, should the store have it nevertheless.
    """

    def __init__(self, task: LockedTask, producer: Any) -> None:
        self._task = task
        self._producer = producer
        self._placed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, **options: Any) -> Any:
        """The first message is the task's; what follows it is Celery's event about it."""
        if self._placed or not isinstance(body, tuple):  # of message protocol 1
            return self._producer.publish(body, **options)
        for entity in options.get("declare") or ():  # a call later goes to a queue that is there
            policy = options.get("retry_policy") or {}
            self._producer.maybe_declare(entity, retry=options.get("retry"), **policy)
        placed = self._leave(body, options)
        self._placed = True
        return None if placed else self._producer.publish(body, **options)

    def _leave(self, body: tuple[Any, ...], options: dict[str, Any]) -> bool:
        """Whether the store has the message; what it does not take is published as usual."""
        here, definition = runtime(self._task.app), self._task.lock_definition
        headers = options["headers"]
        who = identity_in(headers)
        key = definition.template.keys(body[0], body[1])[0]
        subject = Subject(headers["id"], self._task.name, ",".join(definition.template.names))
        past = History(who, since=time.time()).header()
        entry = _entry(here.wake.app_name, key, who, body, options)
        message = entry.encode({HISTORY: past})
        headers[HISTORY] = past  # should it go to the broker after all, this says why
        if len(message) > here.backend.largest_message:
            here.sinks.emit(TooLarge(subject, len(message)))
            return False
        verdict = here.manager.enqueue(self._claim(key, who), message)
        if isinstance(verdict, Drop):
            here.sinks.emit(Dropped(subject, key, verdict.reason))
        elif isinstance(verdict, Park):
            here.sinks.emit(Parked(subject, key))
        return isinstance(verdict, Drop | Park)

    def _claim(self, key: str, who: str) -> Claim:
        definition, here = self._task.lock_definition, runtime(self._task.app)
        asks = queueing(definition.policy or here.policy) or Queueing(None, False, None)
        return Claim(
            key,
            who,
            nonce=uuid.uuid4().hex,
            ttl=int((definition.ttl or here.settings.ttl) * SECOND),
            mode=definition.mode,
            limit=definition.limit,
            wait=Wait.ENQUEUE,
            gives_up=int((asks.max_wait or 0) * SECOND),
            max_waiting=asks.max_waiting or 0,
            drop_oldest=asks.drop_oldest,
        )


def _entry(app: str, key: str, who: str, body: Any, options: Mapping[str, Any]) -> Entry:
    content_type, content_encoding, data = dumps(  # type: ignore[no-untyped-call]
        body, serializer=options.get("serializer")
    )
    compression = options.get("compression")
    exchange = options.get("exchange")
    return Entry(
        app=app,
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
    first = not (request.eta or request.retries or request.replaced_task_nesting)
    if first and request.get(HISTORY) is None:
        _told.add(name)
        logger.warning(
            "%s is ordered by its publishing, but %s was published by a process that does not "
            "have the task: it takes its place as it arrives. Declare the task there too",
            name,
            request.id,
        )
