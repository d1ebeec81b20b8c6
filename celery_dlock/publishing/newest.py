"""Unique tasks whose newest call wins: its message takes the place of the one that waits.

The unique claim says whose message it is, and at which key that waits. It is put there before the
message: a publisher that dies in between leaves an id under which the next one parks its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from celery.utils import uuid

from celery_dlock.contention import Queueing, queueing
from celery_dlock.core.events import Deduplicated, Subject, Unavailable
from celery_dlock.core.state import Drop, Park, WaitMode
from celery_dlock.core.unique import UniqueClaim
from celery_dlock.errors import BackendUnavailable
from celery_dlock.locks.definition import TaskWithLock
from celery_dlock.locks.unique import UniqueClaims, Uniqueness
from celery_dlock.messages.claims import enqueued
from celery_dlock.messages.headers import identity_in
from celery_dlock.messages.unique import UniqueTerms
from celery_dlock.publishing.answer import Send, answered, is_its_own
from celery_dlock.publishing.ordered import Ordered
from celery_dlock.publishing.outbox import NotKept, Unsent
from celery_dlock.runtime import Runtime, runtime, this_process


def newest_call(
    task: TaskWithLock,
    unique: Uniqueness,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    task_id: str | None,
    options: Mapping[str, Any],
) -> NewestCall | None:
    """The call of *task*, unless it is one for itself.

    Raises :exc:`~celery_dlock.ConfigurationError` for arguments that no key can be made of.
    """
    if is_its_own(task_id, options):
        return None
    key = task.lock_definition.keys(args, kwargs).own[0]
    return NewestCall(task, unique, unique.name(args, kwargs), key)


class NewestCall:
    """One call under the *name*, to wait at the *key* if no other one waits."""

    def __init__(self, task: TaskWithLock, unique: Uniqueness, name: str, key: str) -> None:
        self._task = task
        self._unique = unique
        self._name = name
        self._mine = UniqueClaim(f"{uuid()}:0:0", task.name, this_process(), time.time(), key)

    def publish(self, send: Send) -> Any:
        """The result of the task that waits, whose message is that of this call."""
        here = runtime(self._task.app)
        try:
            return self._publish(here, send)
        except NotKept:
            pass  # of which has been told
        except BackendUnavailable as exc:
            here.sinks.emit(Unavailable(self._subject, str(exc)))
        return answered(send(self._mine.task_id, self._header(self._mine)), duplicate=False)

    def _publish(self, here: Runtime, send: Send) -> Any:
        claims, begun = UniqueClaims(here.backend), None
        asks = queueing(self._task.lock_definition.policy_in(here.policy))
        assert asks is not None
        while True:  # for each one that has begun meanwhile
            stands, claim = claims.newest(self._name, self._mine, self._unique.options.ttl, begun)
            is_mine = claim.task_id == self._mine.task_id
            at = replace(claim, key=claim.key or self._mine.key)
            outbox = partial(_Replacing, self._task, asks, at, first=is_mine)
            try:
                result = send(claim.task_id, self._header(claim, stands), outbox)
            except _HasBegun:
                begun = stands
                continue
            if not is_mine:
                here.sinks.emit(Deduplicated(self._subject, self._name, claim.task_id))
            return answered(result, duplicate=not is_mine)

    @property
    def _subject(self) -> Subject:
        return Subject(self._mine.task_id, self._task.name, self._task.lock_definition.label)

    def _header(self, claim: UniqueClaim, stands: bytes | None = None) -> dict[str, Any]:
        terms = UniqueTerms.of(self._unique, self._name, stands)
        return terms.header(claim.task_id, self._task.name)


class _HasBegun(Unsent):
    """The task whose message was to be replaced does not wait any more."""


class _Replacing(Ordered):
    """Takes the place of *claim*; its own, if it is the *first* call."""

    def __init__(
        self, task: TaskWithLock, asks: Queueing, claim: UniqueClaim, producer: Any, *, first: bool
    ) -> None:
        super().__init__(task, asks, producer, goes_on=False)
        self._claim = claim
        self._first = first

    def _leave(self, body: tuple[Any, ...], options: dict[str, Any]) -> bool:
        who = identity_in(options["headers"])
        claim = enqueued(
            *(self._definition.access[0], self._asks, self._claim.key, who, self._task.name)
        )
        if not self._first:
            claim = replace(claim, wait=WaitMode.NEWEST)
        verdict = self._enter(claim, body, options, self._claim.heard)
        if self._first:  # another call may have replaced it already
            return isinstance(verdict, Park | Drop)
        if verdict is None:
            raise NotKept
        if not isinstance(verdict, Park):
            raise _HasBegun
        return True
