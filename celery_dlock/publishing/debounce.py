"""Debounced tasks where they are published: a call waits in the store until it is due.

Its message is that of the newest call, and its id that of the first one, which every caller of a
burst is given. One that cannot wait there waits as any task does that has a countdown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from celery.utils import uuid

from celery_dlock.core.events import Debounced, Subject, Unavailable
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim, task_id_of
from celery_dlock.errors import BackendUnavailable
from celery_dlock.locks.definition import TaskWithLock
from celery_dlock.locks.unique import Debouncing
from celery_dlock.messages.countdown import countdown_from
from celery_dlock.messages.headers import identity_in
from celery_dlock.messages.unique import debounced
from celery_dlock.publishing.answer import Send, answered, is_its_own, result_under
from celery_dlock.publishing.outbox import NotKept, Outbox, Unsent
from celery_dlock.runtime import runtime


def debounced_call(
    task: TaskWithLock,
    debounce: Debouncing,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    task_id: str | None,
    options: Mapping[str, Any],
) -> DebouncedCall | None:
    """The call of *task*, unless it is one for itself.

    Raises :exc:`~celery_dlock.ConfigurationError` for arguments that no key can be made of.
    """
    if is_its_own(task_id, options):
        return None
    return DebouncedCall(task, debounce, debounce.key(args, kwargs), options)


class DebouncedCall:
    """One call, to wait at the *key*."""

    def __init__(
        self, task: TaskWithLock, debounce: Debouncing, key: str, options: Mapping[str, Any]
    ) -> None:
        self._task = task
        self._debounce = debounce
        self._key = key
        self._options = options

    def publish(self, send: Send) -> Any:
        """The result of the task that waits, whose message is that of this call."""
        task_id, here = uuid(), runtime(self._task.app)
        outbox = partial(_Postponing, self._task, self._debounce, self._key)
        try:
            result = send(task_id, {}, outbox)
        except _Merged as merged:
            result = result_under(self._task, merged.living, self._options)
            return answered(result, duplicate=True)
        except NotKept:  # of which has been told
            headers = {}
        except BackendUnavailable as exc:
            subject = Subject(task_id, self._task.name, self._task.lock_definition.label)
            here.sinks.emit(Unavailable(subject, str(exc)))
            headers = debounced(task_id, self._task.name, self._key)
        else:
            return answered(result, duplicate=False)
        countdown = countdown_from(self._task.app, self._debounce.options.delay)
        instead = send(task_id, headers, countdown=countdown)
        return answered(instead, duplicate=False)


class _Merged(Unsent):
    """The message is that of another task now, the *living* one."""

    def __init__(self, living: str) -> None:
        super().__init__(living)
        self.living = living


class _Postponing(Outbox):
    def __init__(self, task: TaskWithLock, debounce: Debouncing, key: str, producer: Any) -> None:
        super().__init__(task, producer)
        self._debounce = debounce
        self._key = key

    def _left(self, body: tuple[Any, ...], options: dict[str, Any]) -> bool:
        message = self._written(self._key, body, options)
        if message is None:
            raise NotKept
        asks, subject = self._debounce.options, self._subject(options)
        nobody = Claim(self._key, identity_in(options["headers"]), nonce="", ttl=0)
        delay, most = int(asks.delay * SECOND), int(asks.max_delay * SECOND)
        reply = self._here.backend.postpone(nobody, message, delay, most)
        living = task_id_of(reply.verdict)
        self._here.sinks.emit(Debounced(subject, self._key, living))
        self._wake(reply)
        if living != subject.task_id:
            raise _Merged(living)
        return True
