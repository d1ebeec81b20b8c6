"""Unique tasks where they are published: a call of one that lives publishes nothing.

The claim is taken before the message is sent. A process that dies in between leaves a claim without
a message, which is believed for a minute of calls.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded
from celery.utils import uuid
from kombu.exceptions import OperationalError

from celery_dlock.core.events import Deduplicated, Subject, Unavailable
from celery_dlock.core.unique import UniqueClaim
from celery_dlock.errors import BackendUnavailable, ConfigurationError, DuplicateTask
from celery_dlock.locks.definition import TaskWithLock
from celery_dlock.locks.unique import UniqueClaims, Uniqueness
from celery_dlock.messages.countdown import seconds_until
from celery_dlock.messages.headers import identity_as_sent
from celery_dlock.messages.unique import UniqueTerms, duplicate
from celery_dlock.publishing.answer import Send, answered, depended_on, result_of_another
from celery_dlock.runtime import Runtime, runtime, this_process

logger = logging.getLogger("celery_dlock")

#: Tasks that have called themselves.
_calls_itself: set[str] = set()

#: After these the message may have been sent.
_UNKNOWN = (OperationalError, OSError, BackendUnavailable, SoftTimeLimitExceeded)


def unique_call(
    task: TaskWithLock,
    unique: Uniqueness,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    task_id: str | None,
    options: Mapping[str, Any],
) -> Call | None:
    """The call of *task*, if it has to ask.

    Raises :exc:`~celery_dlock.ConfigurationError` for arguments that no name can be made of, unless
    somebody depends on the call: then its worker says so.
    """
    depends = depended_on(task_id, options)
    try:
        name = unique.name(args, kwargs)
    except ConfigurationError:
        if depends:
            return None
        raise
    return Call(task, unique, name, task_id or uuid(), options, depended_on=depends)


class Call:
    """One call of a unique task under the *name*, to be published under the *task_id*."""

    def __init__(
        self,
        task: TaskWithLock,
        unique: Uniqueness,
        name: str,
        task_id: str,
        options: Mapping[str, Any],
        *,
        depended_on: bool,
    ) -> None:
        self._task = task
        self._unique = unique
        self._name = name
        self._task_id = task_id
        self._options = options
        self._depended_on = depended_on

    def publish(self, send: Send) -> Any:
        """The result of the task that is published, or of the one that lives.

        Raises :exc:`~celery_dlock.DuplicateTask` where the task wants that, and what *send* raises.
        """
        here, options = runtime(self._task.app), self._unique.options
        subject = Subject(self._task_id, self._task.name, self._task.lock_definition.label)
        claims, mine = UniqueClaims(here.backend), self._claim()
        try:
            told = claims.call(self._name, mine, options.ttl)
        except BackendUnavailable as exc:
            here.sinks.emit(Unavailable(subject, str(exc)))
            return answered(send(self._task_id, {}), duplicate=False)
        living = told.claim.task_id
        if not told.duplicate:
            result = self._send(here, send, told.claim)
            return answered(result, duplicate=_id_of(result) != self._task_id)
        # Of what seems to be lost the worker knows more; the task before it in a chain ends now.
        if self._depended_on and (told.publish or living == self._options.get("parent_id")):
            return answered(send(self._task_id, {}), duplicate=False)
        here.sinks.emit(Deduplicated(subject, self._name, living, published=self._depended_on))
        if self._depended_on:
            headers = duplicate(self._task_id, self._task.name, living)
            return answered(send(self._task_id, headers), duplicate=True)
        if told.publish:  # whose message nobody has seen for too long
            terms = UniqueTerms.of(self._unique, self._name, told.claim.encode())
            headers, retries = terms.header(living, self._task.name), told.claim.retries
            with self._in_doubt(here, told.claim):
                return answered(send(living, headers, retries=retries), duplicate=True)
        if options.on_duplicate == "raise":
            raise DuplicateTask(self._task.name, living)
        self._note_own(living)
        return answered(result_of_another(self._task, living, self._options), duplicate=True)

    def _note_own(self, living: str) -> None:
        """Say once for a task that a body has called its next run, which is not to be."""
        runs, name = self._task.app.current_worker_task, self._task.name
        if runs is not None and runs.request.id == living and name not in _calls_itself:
            _calls_itself.add(name)
            logger.warning(
                "%s has called itself, and the call is a duplicate of its own run: nothing was "
                'published. For a next run write unique="start", or by= with what differs from run '
                "to run",
                name,
            )

    def _send(self, here: Runtime, send: Send, claim: UniqueClaim) -> Any:
        """Publish it. A claim of what was certainly not sent is given back: where that failed, or
        another base class of the task has answered with a task of its own.
        """
        stands, sent = claim.encode(), True
        terms = UniqueTerms.of(self._unique, self._name, stands)
        try:
            with self._in_doubt(here, claim):
                result = send(self._task_id, terms.header(self._task_id, self._task.name))
            sent = _id_of(result) == self._task_id
        except _UNKNOWN:
            raise
        except Exception:
            sent = False
            raise
        finally:
            if not sent:
                with suppress(BackendUnavailable):  # then it is believed for a minute of calls
                    claims = UniqueClaims(here.backend)
                    claims.end(self._name, claim.task_id, terms.ttl, stands)
        return result

    @contextmanager
    def _in_doubt(self, here: Runtime, claim: UniqueClaim) -> Iterator[None]:
        """Where the block ends and nobody knows whether its message was sent, the next call sends
        it, too: who repeats a call that has failed is not answered with what may not be there.
        """
        try:
            yield
        except _UNKNOWN:
            with suppress(BackendUnavailable):  # then it is believed for a minute of calls
                UniqueClaims(here.backend).doubt(self._name, claim, self._unique.options.ttl)
            raise

    def _claim(self) -> UniqueClaim:
        now, app, period = time.time(), self._task.app, self._unique.options.period
        due = self._options.get("eta") or self._options.get("countdown") or 0
        return UniqueClaim(
            task=identity_as_sent(self._task_id, self._options),
            name=self._task.name,
            where=this_process(),
            heard=now + seconds_until(app, due),
            period_ends=now + period if period else 0.0,
        )


def _id_of(result: Any) -> Any:
    return getattr(result, "id", None)
