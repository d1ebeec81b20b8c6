"""A task's message goes to the lock store, where Celery would hand it to the broker.

Celery does all that it does to publish a task: routing, signals, serializing, its own event. An
outbox stands where it expects a producer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from celery import Celery
from celery.backends.base import BaseKeyValueStoreBackend

from celery_dlock.core.events import Subject, TooLarge
from celery_dlock.errors import DLockError
from celery_dlock.locks.definition import TaskWithLock
from celery_dlock.messages.envelope import ParkedMessage
from celery_dlock.messages.headers import HISTORY, History, identity_in
from celery_dlock.runtime import Runtime, runtime
from celery_dlock.stores.base import Reply


class Unsent(Exception):  # nothing is wrong; Celery is to do no more for this message
    """The message is not published, as the outbox has found out."""


class NotKept(Unsent):  # the broker takes it instead
    """The store has no message of the call, which is too large for it."""


class Outbox(ABC):
    """Leaves the task's message with the store, and publishes all else with the *producer*."""

    def __init__(self, task: TaskWithLock, producer: Any) -> None:
        self._task = task
        self._producer = producer
        self._definition = task.lock_definition

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    @property
    def _here(self) -> Runtime:
        return runtime(self._task.app)

    def publish(self, body: Any, **options: Any) -> Any:
        """What the store does not take is published as usual, and Celery's event about the task."""
        if not _is_due(body, options["headers"]) or not self._left(body, options):
            self._subscribe(options)
            return self._producer.publish(body, **options)

    def _subscribe(self, options: Mapping[str, Any]) -> None:
        """As Celery does it just before. Who publishes nothing asks for a result when it wants one.

        Celery's events have no such id.
        """
        app, task_id = self._task.app, options.get("correlation_id")
        if task_id and _is_kept(app) and not options["headers"].get("ignore_result"):
            app.backend.on_task_call(self._producer, task_id)

    @abstractmethod
    def _left(self, body: tuple[Any, ...], options: dict[str, Any]) -> bool:
        """Whether the store has the message."""

    def _subject(self, options: Mapping[str, Any]) -> Subject:
        return Subject(options["headers"]["id"], self._task.name, self._definition.label)

    def _written(
        self, key: str, body: Any, options: dict[str, Any], since: float | None = None
    ) -> bytes | None:
        """The message as it waits at *key*, since then; ``None`` if it is too large for that."""
        here, subject, who = self._here, self._subject(options), identity_in(options["headers"])
        history = History(who, since=since, carried=here.sinks.carry(subject))
        options["headers"][HISTORY] = history.header()
        message = ParkedMessage.of_publish(here.wake.broker, key, who, body, options).encode({})
        if len(message) <= here.backend.largest_message:
            self._declare(options)
            return message
        here.sinks.emit(TooLarge(subject, len(message)))
        return None

    def _wake(self, reply: Reply[Any]) -> None:
        """Over this very connection: another one of the pool may never be free."""
        self._here.wake(reply.wakes, self._producer)

    def _declare(self, options: Mapping[str, Any]) -> None:
        """Where a process that wakes the task later finds its queue."""

        def declare() -> None:
            for entity in options.get("declare") or ():
                self._producer.maybe_declare(entity)

        if options.get("retry"):
            connection, policy = self._producer.connection, options.get("retry_policy") or {}
            declare = connection.ensure(self._producer, declare, **policy)
        declare()


def publish_by(
    outbox: Callable[[Any], Outbox],
    task: TaskWithLock,
    publish: Callable[..., Any],
    task_id: str | None,
    producer: Any,
    options: Mapping[str, Any],
) -> Any:
    """What *publish* returns, which is Celery's, with an *outbox* in place of the *producer*.

    What the outbox raises is no fault of the broker's connection: kombu would close the connection
    of whoever leaves it with an exception.
    """
    ignored = options.get("ignore_result", task.ignore_result)
    if _is_kept(task.app) and not ignored:
        # Celery would subscribe to the result before it is known under which id there is one.
        headers = {**(options.get("headers") or {}), "ignore_result": ignored}
        options = {**options, "headers": headers, "ignore_result": True}
    with task.app.producer_or_acquire(producer) as acquired:
        try:
            result = publish(task_id=task_id, producer=outbox(acquired), **options)
        except (Unsent, DLockError) as exc:
            unsent = exc
        else:
            if result is not None:  # a base class of the project's may return what it likes
                result.ignored = ignored
            return result
    raise unsent


def _is_kept(app: Celery) -> bool:
    """Whether a result can be asked for when it is there; one of ``rpc://`` has to be awaited."""
    return isinstance(app.backend, BaseKeyValueStoreBackend)


def _is_due(body: Any, headers: Mapping[str, Any]) -> bool:
    """Only a task that is to run now; a retry, and what we publish again later, had its place.

    Celery's events, and tasks of message protocol 1, are no tuples.
    """
    return isinstance(body, tuple) and not (headers.get("eta") or headers.get("retries"))
