"""A task's message goes to the lock store, where Celery would hand it to the broker.

Celery does all that it does to publish a task: routing, signals, serializing, its own event. An
outbox stands where it expects a producer, and asks the store one question with the message.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from celery import Celery
from celery.backends.base import BaseKeyValueStoreBackend
from celery.exceptions import SoftTimeLimitExceeded

from celery_dlock.core.access import Access
from celery_dlock.core.debounce import Debounce, Postponed
from celery_dlock.core.events import Debounced, Dropped, Parked, Subject, TooLarge
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim, Drop, EnterVerdict, Park, Reason, WaitMode, task_id_of
from celery_dlock.errors import BackendUnavailable, DLockError
from celery_dlock.locks.definition import TaskWithLock
from celery_dlock.locks.unique import UniqueClaims
from celery_dlock.messages.claims import enqueued
from celery_dlock.messages.envelope import ParkedMessage, is_delayed
from celery_dlock.messages.headers import HISTORY, History, identity_in
from celery_dlock.messages.refusals import exceeds
from celery_dlock.messages.unique import UniqueTerms
from celery_dlock.messages.waking import Unpublishable
from celery_dlock.policies.base import Queueing, queueing
from celery_dlock.policies.shipped import Queue
from celery_dlock.runtime import Runtime, runtime
from celery_dlock.stores.base import Reply, Wake

logger = logging.getLogger("celery_dlock")

#: What Celery says of a link, and of each task of a canvas; one that stands alone has neither.
_OF_A_CANVAS = frozenset({"parent_id", "reply_to"})


@dataclass(slots=True)
class NextStep:
    """The next step of a chain, whose message waits at the head of ``key``.

    Its predecessor holds that one alone; ``keys`` are all that they have in common. The store's
    ``verdict`` is ``None`` where the message goes by the broker.
    """

    key: str
    keys: tuple[str, ...]
    verdict: EnterVerdict | Postponed | None = None

    def question(self, task: TaskWithLock) -> Question:
        """A *task* that does not queue waits for as long as one that does."""
        terms = queueing(task.lock_definition.policy) or Queue().queueing()
        return Question(terms, self.key, time.time(), goes_on=True, next_step=self)


@dataclass(frozen=True, slots=True)
class Question:
    """Whether the message may wait at ``key``, or at the first key of its arguments: in its queue,
    or debounced, as the ``terms`` say.

    It waits ``since`` then. A debounced one that cannot wait is not published. If a canvas
    ``goes_on`` with the task, it goes by the broker where the store cannot be asked: nobody could
    publish it again. A ``next_step`` waits at the head.
    """

    terms: Queueing | Debounce
    key: str = ""
    since: float | None = None
    goes_on: bool = False
    next_step: NextStep | None = None


def ordered_here(task: TaskWithLock, options: Mapping[str, Any]) -> Question | None:
    """The question of a call with *options*, if *task* takes its place where it is published."""
    app = task.app
    terms = queueing(task.lock_definition.policy)
    if terms is None or not terms.at_publish or app.conf.task_always_eager:
        return None
    # A canvas that a body publishes looks the same as what a worker publishes after the body.
    of_a_canvas = not options.keys().isdisjoint(_OF_A_CANVAS)
    goes_on = of_a_canvas and app.current_worker_task is not None
    return Question(terms, since=time.time(), goes_on=goes_on)


class NotPublished(Exception):  # nothing is wrong
    """The message is not published: the store has that of the *living* task, or has none, for it
    is too large.
    """

    def __init__(self, living: str | None = None) -> None:
        super().__init__(living)
        self.living = living


class Outbox:
    """Leaves the task's message with the store, and publishes all else with the *producer*.

    Raises :exc:`~celery_dlock.BackendUnavailable` when the store does not answer. Nothing was sent
    then; to publish again under the same task id is safe, should the store have it nevertheless.
    Raises what the producer raises if the task's turn comes at once and the broker refuses it.
    """

    def __init__(self, task: TaskWithLock, producer: Any, question: Question) -> None:
        self._task = task
        self._producer = producer
        self._question = question

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, **options: Any) -> Any:
        """What the store does not take is published as usual, and Celery's event about the task."""
        answer = _is_due(body, options) and self._ask_or_go_on(body, options)
        if isinstance(answer, NotPublished):
            # Whatever Celery does next tells of the task as published: a signal, an event, a child
            # of the running task. Only an exception keeps it from that.
            raise answer
        if not answer:
            self._subscribe(options)
            return self._producer.publish(body, **options)

    def _subscribe(self, options: Mapping[str, Any]) -> None:
        """As Celery does it just before. Who publishes nothing asks for a result when it wants one.

        Celery's events have no such id.
        """
        app, task_id = self._task.app, options.get("correlation_id")
        if task_id and _keeps_results(app) and not options["headers"].get("ignore_result"):
            app.backend.on_task_call(self._producer, task_id)

    def _ask_or_go_on(self, body: tuple[Any, ...], options: dict[str, Any]) -> bool | NotPublished:
        """Whether the store has the message. If not, the broker is to have it."""
        try:
            return self._ask(body, options)
        except SoftTimeLimitExceeded:
            raise
        except Exception as exc:
            # Celery would take it for a failure of the task before, which has succeeded.
            if not self._question.goes_on:
                raise
            _note_by_broker(self._task.name, exc)
            return False

    def _ask(self, body: tuple[Any, ...], options: dict[str, Any]) -> bool | NotPublished:
        headers, question, process = options["headers"], self._question, runtime(self._task.app)
        subject = Subject(headers["id"], self._task.name, self._task.lock_definition.label)
        claim, is_repeated = self._claim(body, identity_in(headers)), HISTORY in headers
        parked = self._parked(process, claim, subject, body, options)
        message = parked.encode({})
        too_large = len(message) > process.backend.largest_message
        # What its turn could not bring to a worker is for the broker to refuse now.
        if too_large or exceeds(self._producer.connection, parked):
            process.sinks.emit(TooLarge(subject, len(message)))
            return NotPublished() if isinstance(question.terms, Debounce) else False
        self._declare(options)
        reply: Reply[EnterVerdict | Postponed]
        if isinstance(question.terms, Debounce):
            delay, max_delay = question.terms.delay, question.terms.max_delay
            reply = process.backend.postpone(
                claim, message, int(delay * SECOND), int(max_delay * SECOND)
            )
        else:
            reply = process.backend.enter(claim, message)
        if question.next_step is not None:
            question.next_step.verdict = reply.verdict
        match reply.verdict:
            case Park():
                process.sinks.emit(Parked(subject, claim.key, refused=False))
            case Drop(reason=reason):
                process.sinks.emit(Dropped(subject, claim.key, reason, is_repeated))
                if reason is Reason.DONE:
                    _end_unique_claim(process.unique_claims, headers, claim.task)
            case Postponed(task):
                process.sinks.emit(Debounced(subject, claim.key, task_id_of(task)))
            case _:  # no place there
                pass
        # Over this very connection: another one of the pool may never be free.
        if refusal := self._wake(process, reply.wakes, message, parked):
            process.manager.take_back([claim])
            raise refusal
        if isinstance(reply.verdict, Postponed):
            living = task_id_of(reply.verdict.task)
            return living == subject.task_id or NotPublished(living)
        return isinstance(reply.verdict, Park | Drop)  # not where its queue is full

    def _wake(
        self, process: Runtime, wakes: Sequence[Wake], message: bytes, parked: ParkedMessage
    ) -> BaseException | None:
        """The error with which the broker refuses the message itself, if its turn has come."""
        try:
            process.wake(wakes, self._producer, (message, parked))
        except Unpublishable as exc:
            return exc.__cause__
        return None

    def _claim(self, body: tuple[Any, ...], task: str) -> Claim:
        terms, key = self._question.terms, self._question.key
        if isinstance(terms, Debounce):
            return Claim(key, task, nonce="", ttl=0)
        definition = self._task.lock_definition
        access = definition.access[0]
        if not key:
            keys = definition.keys(body[0], body[1])
            key, access = keys.first, keys.access[keys.first]
        if self._question.next_step is not None:
            claim = enqueued(Access(), terms, key, task, self._task.name)
            return replace(claim, wait=WaitMode.HEAD, ordered=True, supersedes=False)
        return enqueued(access, terms, key, task, self._task.name)

    def _parked(
        self, process: Runtime, claim: Claim, subject: Subject, body: Any, options: dict[str, Any]
    ) -> ParkedMessage:
        """The message as it waits."""
        carried = process.sinks.carry(subject)
        history = History(claim.task, since=self._question.since, carried=carried)
        options["headers"][HISTORY] = history.header()
        return ParkedMessage.of_publish(process.wake.broker, claim.key, claim.task, body, options)

    def _declare(self, options: Mapping[str, Any]) -> None:
        """Where a process that wakes the task later finds its queue."""
        entities = options.get("declare") or ()
        is_declared = self._producer.connection.declared_entities.__contains__
        # Before kombu looks there it makes a copy of each, which is dear.
        if all(entity.can_cache_declaration and is_declared(hash(entity)) for entity in entities):
            return

        def declare() -> None:
            for entity in entities:
                self._producer.maybe_declare(entity)

        if options.get("retry"):
            connection, policy = self._producer.connection, options.get("retry_policy") or {}
            declare = connection.ensure(self._producer, declare, **policy)
        declare()


def publish_asking(
    question: Question,
    task: TaskWithLock,
    publish: Callable[..., Any],
    task_id: str | None,
    producer: Any,
    options: Mapping[str, Any],
) -> Any:
    """What *publish* returns, which is Celery's, with an outbox in place of the *producer*; or
    :class:`NotPublished`.

    What the outbox raises is no fault of the broker's connection: kombu would close the connection
    of whoever leaves the block with an exception.
    """
    ignored = options.get("ignore_result", task.ignore_result)
    if _keeps_results(task.app) and not ignored:
        # Celery would subscribe to the result before it is known under which id there is one.
        headers = {**(options.get("headers") or {}), "ignore_result": ignored}
        options = {**options, "headers": headers, "ignore_result": True}
    with task.app.producer_or_acquire(producer) as acquired:
        try:
            result = publish(task_id=task_id, producer=Outbox(task, acquired, question), **options)
        except NotPublished as answer:
            return answer.with_traceback(None)  # whose frames have the answer: a circle
        except DLockError as exc:
            error = exc
        else:
            if result is not None:  # a base class of the project's may return what it likes
                result.ignored = ignored
            return result
    raise error


def _end_unique_claim(claims: UniqueClaims, headers: Mapping[str, Any], attempt: str) -> None:
    """What was published under the id of a finished task is not there to end its claim."""
    terms = UniqueTerms.read(headers)
    if terms is not None:
        with suppress(BackendUnavailable):  # then it is believed for a minute of calls
            task_id = task_id_of(attempt)
            claims.end(terms.name, task_id, terms.ttl, terms.stored, attempt)


def _keeps_results(app: Celery) -> bool:
    """Whether a result can be asked for when it is there; one of ``rpc://`` has to be awaited."""
    return isinstance(app.backend, BaseKeyValueStoreBackend)


def _is_due(body: Any, options: Mapping[str, Any]) -> bool:
    """Only a task that is to run now; a retry, and what we publish again later, had its place.

    Celery's events, and tasks of message protocol 1, are no tuples.
    """
    headers = options["headers"]
    later = headers.get("eta") or headers.get("retries") or is_delayed(options)
    return isinstance(body, tuple) and not later


#: Tasks of a canvas that went by the broker.
_by_broker: set[str] = set()


def _note_by_broker(name: str, exc: Exception) -> None:
    """Once for a task."""
    if name not in _by_broker:
        _by_broker.add(name)
        logger.warning(
            "%s is the next task of a canvas and could not take its place (%r): it goes to the "
            "broker, and is ordered by its arrival",
            name,
            exc,
        )
