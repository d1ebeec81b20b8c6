"""A message of the running task that must not be lost, whatever its broker says.

Celery does all that it does to publish it, and hands it to an :class:`Outgoing` where it would hand
it to a producer. A message that the broker does not take is tried again over new connections: that
of the pool may be what is broken. Then, with late acknowledgement, the delivery goes back to the
broker. If the delivery is acknowledged already, or the message itself is at fault, it is parked in
the lock store, and the sweeper of any worker publishes it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, NoReturn

from celery.exceptions import Reject, SoftTimeLimitExceeded

from celery_dlock.core.access import Keys
from celery_dlock.core.backoff import CHANCE, FullJitter
from celery_dlock.core.events import Dropped, TooLarge, Unavailable
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim, Drop, EnterVerdict, Park, WaitMode
from celery_dlock.delivery.execution import Execution
from celery_dlock.delivery.plan import waits_behind
from celery_dlock.errors import BackendUnavailable
from celery_dlock.messages.claims import enqueued
from celery_dlock.messages.envelope import ParkedMessage
from celery_dlock.messages.headers import HISTORY, History
from celery_dlock.messages.refusals import is_refusal
from celery_dlock.messages.way_back import to_declare
from celery_dlock.policies.shipped import Queue

logger = logging.getLogger("celery_dlock")

#: Seconds that a delivery takes at least before it goes back: the broker may deliver it at once.
ROUND = 1.0

#: How often a message is tried where Celery's retry policy names no end.
TRIES = 3

#: Between two tries of a message that nobody takes.
_STAYING = FullJitter(base=1, cap=30)

Publish = Callable[[Any], object]


@dataclass(eq=False)
class Outgoing:
    """One message of the task of *execution*, under the identity in *history*.

    It is parked at the first of *keys*; *original* is the message to park if this one cannot be
    serialized. It is due after *delay* (seconds). One that is to go to the head of its key is left
    with the store, and published only if that does not take it; ``verdict`` is what the store says.
    """

    execution: Execution
    history: History
    keys: Keys
    original: Callable[[], ParkedMessage | None]
    delay: float = 0.0
    at_head: bool = False
    published: bool = False
    parked: bool = False
    verdict: EnterVerdict | None = None

    @property
    def key(self) -> str:
        return self.keys.first

    def __post_init__(self) -> None:
        self._app = self.execution.task.app
        self._began = time.monotonic()

    def send(self, publish: Publish) -> None:
        """Call *publish*, which publishes the message with this as its producer.

        Returns when the broker or the lock store has it. Raises Celery's ``Reject`` when the
        delivery is to go back to the broker, ``SoftTimeLimitExceeded``, and the error of a message
        that can be neither written nor kept.
        """
        try:
            publish(self)
        except Reject:
            raise
        except SoftTimeLimitExceeded:
            if not (self.published or self.parked):  # else the message is safe
                raise
        except Exception as exc:
            if self.published or self.parked:
                logger.exception("%s is published; a later step failed", self.history.task)
                return
            self._park_or_give_back(exc, self._written(), None)

    # What Celery asks of a producer.

    @property
    def connection(self) -> Any:
        """Not connected; Celery asks it which errors are those of a connection."""
        return self._app.connection_for_write()

    @property
    def channel(self) -> Any:
        return self.connection.default_channel

    def publish(self, body: Any, **options: Any) -> None:
        """The task's message comes first, and Celery's event about it after that."""

        def publish(producer: Any) -> None:
            exchange, routing_key = (
                options.get(name) or "" for name in ("exchange", "routing_key")
            )
            exchange = getattr(exchange, "name", exchange)
            entities = to_declare(self._app, producer, exchange, routing_key)
            declare = [*(options.get("declare") or ()), *entities]
            producer.publish(body, **{**options, "declare": declare})

        if self.published or self.parked:
            self._publish_by_pool(publish)
            return
        if self.at_head and self._keep(self._written(body, options)):
            return
        try:
            self._publish_by_pool(publish)
        except SoftTimeLimitExceeded:
            raise
        except Exception as exc:
            if not self._publish_anew(publish, _pauses(options)):
                self._park_or_give_back(exc, self._written(body, options), publish)
        else:
            self.published = True

    # The ways to the broker.

    def _publish_by_pool(self, publish: Publish) -> None:
        failed: Exception | None = None
        with self._app.producer_or_acquire() as producer:
            try:
                publish(producer)
            except Exception as exc:  # and not out of the block, where kombu may lose the producer
                failed = exc
                _disconnect(producer.connection)
        if failed is not None:
            raise failed

    def _publish_anew(self, publish: Publish, pauses: Iterator[float]) -> bool:
        """Publish over a new connection, after one of *pauses*; whether that worked."""
        for pause in pauses:
            time.sleep(pause)
            connection = self._app.connection_for_write()
            try:
                connection.connect()
                publish(self._app.amqp.Producer(connection, auto_declare=False))
                self.published = True
            except SoftTimeLimitExceeded:
                raise
            except Exception:
                logger.debug("%s cannot be published", self.history.task, exc_info=True)
            else:
                return True
            finally:
                _disconnect(connection)
        return False

    # The ways to keep it.

    def _keep(self, message: bytes | None) -> bool:
        """Whether the store has it, as the next to run. Else the broker is to have it."""
        if message is None or len(message) > self.execution.runtime.backend.largest_message:
            return False
        return self._enter(message)

    def _park_or_give_back(
        self, error: Exception, message: bytes | None, publish: Publish | None
    ) -> None:
        """The broker has not taken it, for *error*; *message* is what the store would keep."""
        late, at_fault = self.execution.task.acks_late, is_refusal(error)
        if late and not at_fault:
            self._give_back(error)
        if message is None:
            raise error
        fits = len(message) <= self.execution.runtime.backend.largest_message
        if not fits:
            self._emit(TooLarge(self.execution.subject, len(message)))
            if at_fault:
                raise error
        elif self._park(message, error):
            return
        if late:
            self._give_back(error)
        self._stay_in_slot(error, message if fits else None, publish)

    def _give_back(self, error: Exception) -> NoReturn:
        """The broker still has this delivery, and delivers it again."""
        logger.warning(
            "%s cannot be published and goes back to the broker: %r", self.history.task, error
        )
        time.sleep(max(0.0, self._began + ROUND - time.monotonic()))
        raise Reject(error, requeue=True) from error

    def _park(self, message: bytes, error: Exception) -> bool:
        """Whether the store has it now."""
        if not self._enter(message):
            return False
        logger.warning("%s cannot be published and is parked: %r", self.history.task, error)
        return True

    def _enter(self, message: bytes) -> bool:
        """Whether the store has it now."""
        runtime, claim = self.execution.runtime, self._claim()
        try:
            reply = runtime.backend.enter(claim, message)
        except BackendUnavailable:
            return False
        except SoftTimeLimitExceeded:
            runtime.manager.take_back([claim])
            raise
        self.parked, self.verdict = True, reply.verdict
        subject, verdict = self.execution.subject, reply.verdict
        if isinstance(verdict, Drop):
            self._emit(Dropped(subject, self.key, verdict.reason))
        else:
            parked = verdict if isinstance(verdict, Park) else Park()
            event = waits_behind(subject, self.key, parked)
            self._emit(replace(event, refused=False))  # who was refused has been told so before
        runtime.wake(reply.wakes)
        return True

    def _stay_in_slot(
        self, error: Exception, message: bytes | None, publish: Publish | None
    ) -> None:
        """Nobody else has it: keep the worker's slot until somebody takes it."""
        logger.error(
            "%s stays in its slot: neither the broker nor the lock store accepts it: %r",
            self.history.task,
            error,
        )
        self._emit(Unavailable(self.execution.subject, str(error)))
        for attempt in count():
            pause = _STAYING.delay(attempt, CHANCE.random)
            if publish is None:
                time.sleep(pause)
            elif self._publish_anew(publish, iter((pause,))):
                return
            if message is not None and self._park(message, error):
                return

    def _written(self, body: Any = None, options: dict[str, Any] | None = None) -> bytes | None:
        """The message as the store keeps it; ``None`` if there is no way to write it."""
        headers = {HISTORY: self.history.header()}
        if options is not None:
            broker, task = self.execution.runtime.wake.broker, self.history.task
            try:
                parked = ParkedMessage.of_publish(broker, self.key, task, body, options)
                return parked.encode(headers)
            except Exception as exc:
                if not is_refusal(exc):
                    raise
                logger.debug("%s cannot be serialized", task, exc_info=True)
        original = self.original()
        return None if original is None else original.encode(headers)

    def _claim(self) -> Claim:
        """The claim of a message that, when it is due, asks for a turn and not for the key. No
        queue is too full for a task that was accepted before.
        """
        execution, task = self.execution, self.history.task
        access, late = self.keys.access[self.key], int(self.delay * SECOND)
        terms = execution.queueing or Queue(max_wait=None).queueing()
        claim = enqueued(access, terms, self.key, task, execution.task.name)
        reserved = self.at_head and execution.task.lock_definition.reserve is not None
        return replace(
            claim,
            wait=WaitMode.HEAD if self.at_head else WaitMode.ENQUEUE,
            delay=late,
            gives_up=claim.gives_up and claim.gives_up + late,
            max_waiting=0,
            drop_oldest=claim.drop_oldest and self.at_head,
            ordered=claim.ordered or reserved,
            supersedes=False,
        )

    def _emit(self, event: Any) -> None:
        self.execution.runtime.sinks.emit(event)


def _pauses(options: dict[str, Any]) -> Iterator[float]:
    """Those of Celery's retry policy; one, where it does not retry."""
    policy = options.get("retry_policy") or {}
    tries = policy.get("max_retries", TRIES) if options.get("retry") else 1
    start, step = policy.get("interval_start") or 0, policy.get("interval_step") or 0
    for number in range(TRIES if tries is None else max(1, tries)):
        yield min(start + step * number, policy.get("interval_max") or 0)


def _disconnect(connection: Any) -> None:
    """Its next user connects anew, whatever has become of its channel."""
    for _ in range(2):  # a channel that cannot be closed properly raises once
        with suppress(Exception):
            connection.collect()
            return
