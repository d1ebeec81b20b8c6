"""One call of a task, where it is published: who lives, and whose message it is to be.

A duplicate call of a unique task publishes nothing. The message of a debounced call takes the place
of the one that waits in the store.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from celery.exceptions import SoftTimeLimitExceeded
from celery.utils import uuid
from kombu.exceptions import OperationalError

from celery_dlock.core.events import Deduplicated, Subject, Unavailable
from celery_dlock.core.unique import UniqueClaim
from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.locks.definition import TaskWithLock
from celery_dlock.locks.unique import Debouncing, Uniqueness
from celery_dlock.messages.countdown import countdown_from, seconds_until
from celery_dlock.messages.envelope import is_delayed
from celery_dlock.messages.headers import identity, identity_as_sent
from celery_dlock.messages.unique import UniqueTerms, debounced, duplicate, is_about
from celery_dlock.publishing.outbox import (
    NextStep,
    NotPublished,
    Question,
    ordered_here,
    publish_asking,
)
from celery_dlock.runtime import runtime, this_process

logger = logging.getLogger("celery_dlock")

#: What says that somebody waits for this very task: a canvas, or who gave it its id.
_DEPENDS = frozenset({"link", "link_error", "chain", "chord", "group_id"})

#: After these the message may have been sent.
_UNKNOWN = (OperationalError, OSError, BackendUnavailable, SoftTimeLimitExceeded)


def marked(result: Any, *, duplicate: bool) -> Any:
    """*result*, which says whether it is that of another call."""
    if result is not None:  # a base class of the project's may return what it likes
        result.is_duplicate = duplicate
    return result


@dataclass(frozen=True, slots=True)
class Call:
    """One call of *task* with the *options* of its caller, to be published by *apply_async*, which
    is Celery's; *next_step* is set if it continues a chain under the same lock.
    """

    task: TaskWithLock
    apply_async: Callable[..., Any]
    producer: Any
    task_id: str | None
    options: Mapping[str, Any]
    next_step: NextStep | None = None

    def publish(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of the task that is published, or of the one that lives.

        Raises :exc:`~celery_dlock.ConfigurationError` for arguments that no key or name can be
        made of, and what Celery raises.
        """
        definition = self.task.lock_definition
        unique, debounce = definition.unique, definition.debounce
        if (unique is None and debounce is None) or self._asks_nobody():
            return self.send(self.task_id)
        if debounce is not None:
            return _publish_debounced(self, debounce, debounce.key(args, kwargs))
        assert unique is not None
        try:
            name = unique.name(args, kwargs)
        except ConfigurationError:
            if not self.depended_on:
                raise
            return self.send(self.task_id)  # its worker says so
        return _UniqueCall(self, unique, name).publish()

    def _asks_nobody(self) -> bool:
        """Whether it is published like any task. What is published again has its claim, or had
        none. A debounced one that somebody depends on, or with a time of its own, neither replaces
        another nor is replaced.
        """
        task, task_id, options = self.task, self.task_id, self.options
        if task.app.conf.task_always_eager or is_about(task_id, task.name, options.get("headers")):
            return True
        if task.lock_definition.debounce is not None:
            later = any(map(options.get, ("eta", "countdown"))) or is_delayed(options)
            return self.depended_on or later
        return task_id is not None and identity_as_sent(task_id, options) == identity(task.request)

    @property
    def depended_on(self) -> bool:
        """Whether somebody depends on the call itself, under its own id."""
        return self.task_id is not None or any(map(self.options.get, _DEPENDS))

    def send(
        self,
        task_id: str | None,
        headers: Mapping[str, Any] | None = None,
        question: Question | None = None,
        *,
        duplicate: bool = False,
        **more: Any,
    ) -> Any:
        """The result of the message that is published under *task_id*, with *headers* and *more*
        options; or :class:`NotPublished`, as the store has answered the *question*.
        """
        options = {**self.options, **more}
        if headers:
            options["headers"] = {**(options.get("headers") or {}), **headers}
        if question is None and self.next_step is not None and not duplicate:
            question = self.next_step.question(self.task)
        question = question or ordered_here(self.task, options)
        if question is None:
            result = self.apply_async(task_id=task_id, producer=self.producer, **options)
        else:
            result = publish_asking(
                question, self.task, self.apply_async, task_id, self.producer, options
            )
        return result if isinstance(result, NotPublished) else marked(result, duplicate=duplicate)

    def result_of(self, living: str) -> Any:
        """The result of this call, which has published nothing: that of the *living* task.

        As Celery's own, it waits for no result that is not kept.
        """
        task = self.task
        result = task.app.AsyncResult(living, backend=task.backend, task_name=task.name)
        result.ignored = self.options.get("ignore_result", task.ignore_result)
        return marked(result, duplicate=True)

    def subject(self, task_id: str) -> Subject:
        """The call, if it has that id."""
        return Subject(task_id, self.task.name, self.task.lock_definition.label)


def _publish_debounced(call: Call, debounce: Debouncing, key: str) -> Any:
    """Replace the message of the task that waits at *key*, or wait there, until the call is due.

    The id is that of the first call, which every caller of a burst is given. One that cannot wait
    there waits as any task does that has a countdown.
    """
    task, task_id, headers = call.task, uuid(), {}
    try:
        result = call.send(task_id, question=Question(debounce.options, key))
        if not isinstance(result, NotPublished):
            return result
        if result.living is not None:
            return call.result_of(result.living)
    except BackendUnavailable as exc:
        runtime(task.app).sinks.emit(Unavailable(call.subject(task_id), str(exc)))
        headers = debounced(task_id, task.name, key)
    countdown = countdown_from(task.app, debounce.options.delay)
    return call.send(task_id, headers, countdown=countdown)


class _UniqueCall:
    """A call under the *name* of its unique claim, which is taken before the message is sent.

    A process that dies in between leaves a claim without a message, which is believed for a minute
    of calls.
    """

    def __init__(self, call: Call, unique: Uniqueness, name: str) -> None:
        self._call = call
        self._unique = unique
        self._name = name
        self._task_id = call.task_id or uuid()
        self._runtime = runtime(call.task.app)
        self._claims = self._runtime.unique_claims

    def publish(self) -> Any:
        call, options, emit = self._call, self._unique.options, self._runtime.sinks.emit
        subject, depended_on = call.subject(self._task_id), call.depended_on
        try:
            stored, reply = self._claims.call(self._name, self._claim(), options.ttl)
        except BackendUnavailable as exc:
            emit(Unavailable(subject, str(exc)))
            return call.send(self._task_id)
        living = reply.claim.task_id
        if not reply.duplicate:
            return self._send_first(reply.claim, stored)
        # Of what seems to be lost the worker knows more; the task before it in a chain ends now.
        if depended_on and (reply.publish or living == call.options.get("parent_id")):
            return call.send(self._task_id)
        emit(Deduplicated(subject, self._name, living, published=depended_on))
        if depended_on:
            headers = duplicate(self._task_id, call.task.name, living)
            return call.send(self._task_id, headers, duplicate=True)
        if reply.publish:  # whose message nobody has seen for too long
            again = {"duplicate": True, "retries": reply.claim.retries}
            return self._send(living, reply.claim, stored, **again)
        _note_own(call.task, living)
        result = call.result_of(living)
        if call.task.app.conf.result_backend in ("rpc", "rpc://"):
            result.get = _never_comes  # it comes as a message to its publisher alone
        return result

    def _send_first(self, claim: UniqueClaim, stored: bytes | None) -> Any:
        """Publish it. A claim of what was certainly not sent is given back: where that failed, or
        another base class of the task has answered with a task of its own.
        """
        try:
            result = self._send(self._task_id, claim, stored)
        except _UNKNOWN:
            raise
        except Exception:
            self._give_back(claim)
            raise
        if getattr(result, "id", None) == self._task_id:
            return result
        self._give_back(claim)
        return marked(result, duplicate=True)

    def _send(self, task_id: str, claim: UniqueClaim, stored: bytes | None, **options: Any) -> Any:
        """Publish it under *task_id*. Where nobody knows whether it was sent, the next call sends
        it, too: who repeats a call that has failed is not answered with what may not be there.
        """
        terms = UniqueTerms.of(self._unique, self._name, stored)
        headers = terms.header(task_id, self._call.task.name)
        try:
            return self._call.send(task_id, headers, **options)
        except _UNKNOWN:
            with suppress(BackendUnavailable):  # then it is believed for a minute of calls
                self._claims.doubt(self._name, claim, terms.ttl)
            raise

    def _give_back(self, claim: UniqueClaim) -> None:
        with suppress(BackendUnavailable):  # then it is believed for a minute of calls
            ttl = self._unique.options.ttl
            self._claims.end(self._name, claim.task_id, ttl, claim.encode())

    def _claim(self) -> UniqueClaim:
        now, options, period = time.time(), self._call.options, self._unique.options.period
        due = options.get("eta") or options.get("countdown") or 0
        return UniqueClaim(
            task=identity_as_sent(self._task_id, options),
            name=self._call.task.name,
            where=this_process(),
            heard=now + seconds_until(self._call.task.app, due),
            period_ends=now + period if period else 0.0,
        )


#: Tasks that have called themselves.
_calls_itself: set[str] = set()


def _note_own(task: TaskWithLock, living: str) -> None:
    """Say once for a task that a body has called its next run, which is not to be."""
    running, name = task.app.current_worker_task, task.name
    if running is not None and running.request.id == living and name not in _calls_itself:
        _calls_itself.add(name)
        logger.warning(
            "%s has called itself, and the call is a duplicate of its own run: nothing was "
            'published. For a next run write unique="start", or by= with what differs from run '
            "to run",
            name,
        )


def _never_comes(*_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError(
        "this is a duplicate of a task that another call has published, and the result backend "
        "rpc:// sends the result to that caller only: use another backend, or use only the id"
    )
