"""Order as published: a task takes its place in the queue where it is published.

Its message goes to the lock store, and the next one goes to the broker: this one at once, if the
key is free and nobody waits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded

from celery_dlock.contention import Queueing, policy_named, queueing
from celery_dlock.core.events import Dropped, Parked
from celery_dlock.core.state import (
    Busy,
    Claim,
    Drop,
    End,
    EnterVerdict,
    Park,
    Reason,
    Run,
    Same,
    task_id_of,
)
from celery_dlock.errors import BackendUnavailable
from celery_dlock.locks.definition import TaskWithLock
from celery_dlock.locks.unique import UniqueClaims
from celery_dlock.messages.claims import enqueued
from celery_dlock.messages.headers import HISTORY, identity_in
from celery_dlock.messages.unique import UniqueTerms
from celery_dlock.publishing.outbox import Outbox

logger = logging.getLogger("celery_dlock")

#: What Celery says of a link, and of each task of a canvas; one that stands alone has neither.
_OF_A_CANVAS = frozenset({"parent_id", "reply_to"})


def ordered_here(task: TaskWithLock, options: Mapping[str, Any]) -> Callable[[Any], Outbox] | None:
    """What makes an outbox of a producer, if *task* takes its place where it is published.

    The settings as a whole are not read: a process that publishes only other tasks needs no lock
    store.
    """
    conf = task.app.conf
    policy = task.lock_definition.policy or conf.get("dlock_on_contention")
    asks = queueing(policy_named(policy)) if policy else None
    if not asks or not asks.at_publish or conf.task_always_eager:
        return None
    return partial(Ordered, task, asks, goes_on=_goes_on(task.app, options))


def _goes_on(app: Any, options: Mapping[str, Any]) -> bool:
    """Whether a worker publishes with these *options* what follows in a chain, a link or a chord.

    A canvas that a body publishes looks the same.
    """
    return app.current_worker_task is not None and not options.keys().isdisjoint(_OF_A_CANVAS)


class Ordered(Outbox):
    """Takes its place in the queue.

    Raises :exc:`~celery_dlock.BackendUnavailable` when the store does not answer. Nothing was sent
    then; to publish again under the same task id is safe, should the store have it nevertheless.
    Where a canvas *goes on* with the task, nobody could: it goes by the broker.
    """

    def __init__(self, task: TaskWithLock, asks: Queueing, producer: Any, *, goes_on: bool) -> None:
        super().__init__(task, producer)
        self._asks = asks
        self._goes_on = goes_on

    def _left(self, body: tuple[Any, ...], options: dict[str, Any]) -> bool:
        """Not where the store does not answer, and a canvas has to go on."""
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
        keys = self._definition.keys(body[0], body[1])
        who = identity_in(options["headers"])
        access, name = keys.access[keys.first], self._task.name
        claim = enqueued(access, self._asks, keys.first, who, name)
        return isinstance(self._enter(claim, body, options, time.time()), Park | Drop)

    def _enter(
        self, claim: Claim, body: tuple[Any, ...], options: dict[str, Any], since: float
    ) -> EnterVerdict | None:
        """What the store says; ``None`` if it has not been asked, for the message is too large."""
        repeated = HISTORY in options["headers"]
        message = self._written(claim.key, body, options, since)
        if message is None:
            return None
        emit, subject = self._here.sinks.emit, self._subject(options)
        reply = self._here.backend.enter(claim, message)
        match reply.verdict:
            case Park():
                emit(Parked(subject, claim.key, refused=False))
            case Drop(reason=reason):
                emit(Dropped(subject, claim.key, reason, repeated))
                if reason is Reason.DONE:
                    self._end_claim(options["headers"], claim.task)
            case Busy() | Run() | Same() | End():
                pass  # it is full; the others are answers to those who ask for the key
        self._wake(reply)
        return reply.verdict

    def _end_claim(self, headers: Mapping[str, Any], attempt: str) -> None:
        """What was published under the id of a finished task is not there to end its claim."""
        terms = UniqueTerms.read(headers)
        if terms is not None:
            claims = UniqueClaims(self._here.backend)
            with suppress(BackendUnavailable):  # then it is believed for a minute of calls
                claims.end(terms.name, task_id_of(attempt), terms.ttl, terms.stands, attempt)


_gone_by_broker: set[str] = set()


def _tell_by_broker(name: str, exc: Exception) -> None:
    """Once for a task."""
    if name not in _gone_by_broker:
        _gone_by_broker.add(name)
        logger.warning(
            "%s is the next task of a canvas and could not take its place (%r): it goes to the "
            "broker, and is ordered by its arrival",
            name,
            exc,
        )
