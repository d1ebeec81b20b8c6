"""Publishing the messages of tasks that are woken.

What fails here is late and not lost, and raises nothing: a wake that nobody answers is repeated by
the sweeper of any worker. A message of another broker is left to that broker's workers. One that
the broker refuses is dead-lettered after some wakes, and its result says why.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from celery import Celery
from celery.app.task import Context
from celery.exceptions import SoftTimeLimitExceeded
from kombu.exceptions import OperationalError

from celery_dlock.core.events import DeadLettered, LeftToOthers, Revoked, Subject, Woken
from celery_dlock.core.sinks import Sinks
from celery_dlock.core.state import WAKES_RESERVED, Cause, Claim, Ending, Outcome, task_id_of
from celery_dlock.locks.unique import UniqueClaims
from celery_dlock.messages.broker_name import broker_name
from celery_dlock.messages.envelope import OfAnotherVersion, ParkedMessage, Undecodable
from celery_dlock.messages.headers import HISTORY, carried_by
from celery_dlock.messages.refusals import Comparison, is_refusal
from celery_dlock.messages.unique import UniqueTerms
from celery_dlock.messages.way_back import to_declare
from celery_dlock.messages.woken_queues import WokenQueues, came_from
from celery_dlock.stores.base import LockBackend, Reply, Wake

logger = logging.getLogger("celery_dlock")

#: A message as the store has it, and what it says.
Written = tuple[bytes, ParkedMessage]

#: Once for each message. What was promised an order is all that the key is still kept for.
IN_VAIN = (
    "%s was woken %d times, into the queue %s, and no worker took it: does a worker consume that "
    "queue, and is its limit known? %s is free for other tasks now, unless the order was promised"
)

#: So many messages for others are remembered as having been told of.
REMEMBERED = 10_000

#: A message of another broker that is to end is left to its own workers so many times. Its result
#: may be kept elsewhere, too, so they should end it; here it can only become a dead letter.
LEFT_TO_END = 20


class Unpublishable(Exception):
    """The broker refuses the message that the caller has just written; the cause says why."""


class Waker:
    """Publishes the messages of one app."""

    def __init__(
        self,
        app: Celery,
        backend: LockBackend,
        sinks: Sinks,
        broker: str | None = None,
    ) -> None:
        self._app = app
        self.queues = WokenQueues(app)
        self._named = broker
        self._backend = backend
        self._sinks = sinks
        self._other_brokers: set[str] = set()
        self._left: dict[tuple[str, str], int] = {}
        self._comparison = Comparison()
        self._of_another_version: set[str] = set()

    @cached_property
    def broker(self) -> str:
        """Tells the broker from those of others that share the store.

        ``dlock_broker`` is for one that has several addresses.
        """
        if self._named is not None:
            return self._named
        with self._app.connection_for_write() as connection:
            return broker_name(connection)

    def __call__(
        self, wakes: Sequence[Wake], producer: Any = None, written: Written | None = None
    ) -> int:
        """Publish each message, with *producer* if one is at hand; how many were our own.

        So is each that the store wakes meanwhile. It repeats what does not get through. What the
        caller has just *written* need not be read. If the broker refuses it :exc:`Unpublishable`
        is raised after the others are published.
        """
        ours, todo, seen = 0, deque(wakes), set[tuple[str, str]]()
        refused: Unpublishable | None = None
        while todo:
            wake = todo.popleft()
            if (wake.key, wake.task) in seen:
                continue  # or two messages of another broker would wake each other for ever
            seen.add((wake.key, wake.task))
            try:
                others = self._wake(wake, producer, written)
            except SoftTimeLimitExceeded:  # it only happens to strike here
                raise
            except Unpublishable as exc:
                refused = exc
            except Exception:
                logger.exception("%s could not be woken; it is woken again", wake.task)
            else:
                ours += others is None
                todo.extend(others or ())
        if refused is not None:
            raise refused
        return ours

    def dead_letter(self, key: str, task: str, name: str, cause: Cause) -> None:
        """Report a woken message that this process cannot use; perhaps another can.

        After some wakes it is dead-lettered, and the next one is woken. *name* is its task's.
        """
        self(self._dead_letter(key, task, name, cause).wakes)

    def _dead_letter(self, key: str, task: str, name: str, cause: Cause) -> Reply[bool]:
        """Whether it is dead now, and the wakes of the tasks that come next instead."""
        reply = self._backend.dead_letter(key, task, cause)
        if reply.verdict:
            self._sinks.emit(DeadLettered(self._subject(task, name), key, cause))
        return reply

    def _wake(self, wake: Wake, producer: Any, written: Written | None) -> Sequence[Wake] | None:
        """``None`` when it is published; else the wakes of the tasks that come next meanwhile."""
        try:
            entry = _as_written(wake, written) or ParkedMessage.decode(
                wake.key, wake.task, wake.message
            )
        except OfAnotherVersion as exc:
            self._note_version(wake, exc)
            return self._backend.hand_back(wake.key, wake.task).wakes
        except Undecodable:
            logger.exception("%s waits for %s and cannot be woken", wake.task, wake.key)
            return self._dead_letter(wake.key, wake.task, "", Cause.UNREADABLE).wakes
        name = str(entry.headers.get("task") or "")  # message protocol 1 has it in its body
        subject = self._subject(wake.task, name, carried_by(entry.headers))
        if entry.broker != self.broker:
            self._note_broker(wake, entry.broker)
            return self._leave_to_others(wake, entry, subject)
        again = wake.woken > 1
        message = (wake.key, wake.task)
        place = (entry.exchange, entry.routing_key, again)
        try:
            queue = self._publish(entry, producer, again=again)
        except SoftTimeLimitExceeded:
            raise
        except Exception as exc:
            if not (is_refusal(exc) or self._comparison.fails(message, place, exc)):
                raise
            if written is not None and entry is written[1]:
                raise Unpublishable(wake.task) from exc
            logger.exception("%s waits for %s and cannot be published", wake.task, wake.key)
            return self._end_refused(wake, entry, subject, exc)
        self._comparison.passes(message, place)
        self._sinks.emit(Woken(subject, wake.key, wake.ending, queue, max(0, wake.woken - 1)))
        if wake.woken == WAKES_RESERVED + 1:
            logger.warning(IN_VAIN, wake.task, wake.woken - 1, entry.routing_key, wake.key)
        return None

    def _end_refused(
        self, wake: Wake, entry: ParkedMessage, subject: Subject, error: Exception
    ) -> Sequence[Wake]:
        """The wakes of the tasks that come next instead of one that no worker is going to get.

        One that is revoked ends here, any other as a dead letter. Its result says so.
        """
        if wake.ending is Ending.REVOKED:
            self._store_end(entry, subject, None)
            self._sinks.emit(Revoked(subject, wake.key))
            if terms := UniqueTerms.read(entry.headers):
                UniqueClaims(self._backend).forget(terms.name, subject.task_id)
            claim = Claim(wake.key, wake.task, nonce="", ttl=0)
            return self._backend.leave(claim, Outcome.OVER).wakes
        cause = Cause.UNPUBLISHABLE
        reply = self._dead_letter(wake.key, wake.task, subject.task_name, cause)
        if reply.verdict:
            self._store_end(entry, subject, OperationalError(f"the broker refuses it: {error}"))
        return reply.wakes

    def _store_end(self, entry: ParkedMessage, subject: Subject, error: Exception | None) -> None:
        """Store *error* as the result of a task that does not run; with ``None`` it is revoked."""
        if entry.headers.get("ignore_result"):
            return
        task = self._app.tasks.get(subject.task_name)
        backend = self._app.backend if task is None else task.backend
        request = Context({**entry.headers, **entry.properties})
        try:
            if error is None:
                backend.mark_as_revoked(subject.task_id, "revoked", request=request)
            else:
                backend.mark_as_failure(subject.task_id, error, request=request)
        except SoftTimeLimitExceeded:
            raise
        except Exception:
            logger.exception("the result of %s could not be stored", subject.task_id)

    def _leave_to_others(
        self, wake: Wake, entry: ParkedMessage, subject: Subject
    ) -> Sequence[Wake]:
        """Leave it parked; one that is to end is dead-lettered if its own workers do not end it."""
        message = (wake.key, wake.task)
        times = self._left.get(message, 0) + 1
        if len(self._left) >= REMEMBERED:
            self._left.clear()
        self._left[message] = times
        if times == 1:
            self._sinks.emit(LeftToOthers(subject, wake.key, entry.broker))
        if wake.ending is not None and times > LEFT_TO_END:
            cause = Cause.OTHER_BROKER
            return self._dead_letter(wake.key, wake.task, subject.task_name, cause).wakes
        return self._backend.hand_back(wake.key, wake.task).wakes

    def _subject(self, task: str, name: str, carried: Mapping[str, str] = {}) -> Subject:
        """The template is known where the task is; elsewhere there is none."""
        definition = getattr(self._app.tasks.get(name), "lock_definition", None)
        return Subject(task_id_of(task), name, definition.label if definition else "", carried)

    def _note_version(self, wake: Wake, exc: OfAnotherVersion) -> None:
        """Once for each message, however often it is woken."""
        if wake.task not in self._of_another_version:
            if len(self._of_another_version) >= REMEMBERED:
                self._of_another_version.clear()
            self._of_another_version.add(wake.task)
            logger.warning("%s waits for %s: %s", wake.task, wake.key, exc)

    def _note_broker(self, wake: Wake, broker: str) -> None:
        """Once for each broker: it may be our own, called by another name."""
        if broker not in self._other_brokers:
            self._other_brokers.add(broker)
            logger.warning(
                "%s belongs to the broker %s, and this worker's broker is %s: the message stays in "
                "the lock store. If workers run at the first broker, all is well. If both are one "
                "broker, under another address or before it moved, set dlock_broker to the first "
                "name in all processes (see the page 'Change the broker')",
                wake.task,
                broker,
                self.broker,
            )

    def _publish(self, entry: ParkedMessage, producer: Any, *, again: bool) -> str:
        """To the queue for woken messages; *again* to the one that it came from. Which it was."""
        history = {**entry.headers.get(HISTORY, {}), "key": entry.key, "called": time.time()}
        policy = self._app.conf.task_publish_retry_policy
        with self._app.producer_or_acquire(producer) as acquired:
            exchange, routing_key = entry.exchange, entry.routing_key
            beside = None if again else self.queues.of_message(exchange, routing_key)
            if beside is not None and self.queues.is_there(
                beside, acquired.connection, routing_key
            ):
                history |= came_from(exchange, routing_key)
                exchange, routing_key = "", beside.name
            acquired.publish(
                entry.body,
                exchange=exchange,
                routing_key=routing_key,
                content_type=entry.content_type,
                content_encoding=entry.content_encoding,
                compression=entry.headers.get("compression", ""),  # it came unpacked
                headers={**entry.headers, "eta": None, HISTORY: history},
                retry=bool(self._app.conf.task_publish_retry),
                retry_policy=policy,
                declare=to_declare(self._app, acquired, exchange, routing_key),
                **entry.properties,
            )
            return routing_key


def _as_written(wake: Wake, written: Written | None) -> ParkedMessage | None:
    if written is None or written[0] != wake.message:
        return None
    message = written[1]
    return message if (message.key, message.task) == (wake.key, wake.task) else None
