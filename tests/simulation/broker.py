"""A broker that keeps what is published, and how Celery's processes see it.

Like RabbitMQ where each queue is bound by its name: a message is there from when it is published
until it is acknowledged; what a channel has not acknowledged as it ends goes back to its place, is
delivered again, and says so. Two queues of a worker are served by chance. A message that has to
wait by Celery's native delayed delivery comes to its queue as it is due.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import pickle
import time
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import kombu.connection
from amqp.exceptions import AccessRefused, NotFound
from celery import Celery
from kombu.exceptions import OperationalError
from kombu.message import Message
from kombu.serialization import dumps, prepare_accept_content
from kombu.transport.native_delayed_delivery import (
    CELERY_DELAYED_DELIVERY_EXCHANGE,
    MAX_LEVEL,
    MAX_NUMBER_OF_BITS_TO_USE,
    level_name,
)

from celery_dlock.messages.headers import identity_in
from tests.simulation.kernel import Kernel
from tests.simulation.system import process

if TYPE_CHECKING:
    from tests.simulation.faults import Faults
    from tests.simulation.worker import Worker


@dataclass(frozen=True, slots=True)
class Sent:
    """A message at the broker; *frame* is what is written of it, as no two processes share it."""

    queue: str
    body: bytes
    frame: bytes
    task: str
    name: str
    delay: int = 0
    identity: str = ""
    place: int = 0
    redelivered: bool = False


class Broker:
    """All queues."""

    def __init__(self, faults: Faults) -> None:
        self.queues: dict[str, deque[Sent]] = defaultdict(deque)
        self.workers: list[Worker] = []
        self.published = 0
        #: Under which identity a task was published last: with its retries, and how often replaced.
        self.last: dict[str, str] = defaultdict(str)
        self.waiting: list[Sent] = []
        self.urls: Sequence[str] = ()
        self.lets_declare = True
        self._faults = faults

    def publish(self, sent: Sent) -> None:
        """Raises :exc:`OperationalError`, whatever has become of it, where a fault is due."""
        kernel = Kernel.here()
        kernel.pause(f"to publish {sent.task} to {sent.queue}")
        with self._faults.at_publish():
            self.published += 1
            kept = replace(sent, place=self.published)
            self.last[sent.task] = max(self.last[sent.task], sent.identity)
            if sent.delay:
                kernel.spawn(process("broker"), partial(self._wait, kept), "delays")
            else:
                self._put(kept)
        kernel.pause(f"having published {sent.task}")

    def _wait(self, sent: Sent) -> None:
        self.waiting.append(sent)
        Kernel.here().wait(sent.delay)
        self.waiting.remove(sent)
        self._put(sent)

    def back(self, sent: Sent) -> None:
        self._put(replace(sent, redelivered=True))

    def _put(self, sent: Sent) -> None:
        queue = self.queues[sent.queue]
        queue.insert(bisect_left(queue, sent.place, key=lambda each: each.place), sent)
        for worker in self.workers:
            worker.stir()


class Channel:
    """What *worker* has been delivered over one connection, and not acknowledged."""

    no_ack_consumers = None

    def __init__(self, broker: Broker, worker: Worker) -> None:
        self._broker = broker
        self.worker = worker
        self._tags = 0
        self.open = True
        self.unacked: dict[int, Sent] = {}

    def deliver(self, sent: Sent) -> Message:
        self._tags += 1
        self.unacked[self._tags] = sent
        headers, properties, content_type, encoding, exchange, key = pickle.loads(sent.frame)
        if sent.delay:
            exchange, headers["x-death"] = CELERY_DELAYED_DELIVERY_EXCHANGE, []
        message = Message(
            body=sent.body,
            delivery_tag=self._tags,
            content_type=content_type,
            content_encoding=encoding,
            headers=headers,
            properties=properties,
            delivery_info={
                "exchange": exchange,
                "routing_key": key,
                "redelivered": sent.redelivered,
            },
            channel=self,
        )
        message.accept = ACCEPTED
        return message

    def basic_ack(self, tag: int, multiple: bool = False) -> None:
        Kernel.here().pause(f"to acknowledge {self._name(tag)}")
        self._settle(tag)

    def basic_reject(self, tag: int, requeue: bool = False) -> None:
        Kernel.here().pause(f"to {'requeue' if requeue else 'reject'} {self._name(tag)}")
        sent = self._settle(tag)
        if requeue:
            self._broker.back(sent)

    def _settle(self, tag: int) -> Sent:
        if not self.open:
            raise ConnectionResetError("the connection is gone")
        sent = self.unacked.pop(tag)
        self.worker.stir()
        return sent

    def _name(self, tag: int) -> str:
        return self.unacked[tag].task if tag in self.unacked else "what is another's by now"

    def end(self) -> None:
        """The connection is lost: all of it is delivered again."""
        self.open = False
        left, self.unacked = list(self.unacked.values()), {}
        for sent in left:
            self._broker.back(sent)


ACCEPTED = prepare_accept_content(["json"])


class Connection:
    """What publishers and steps of the worker ask a connection of kombu's for."""

    transport = SimpleNamespace(driver_type="amqp")
    recoverable_connection_errors = connection_errors = (OSError,)
    channel_errors = ()
    declared_entities: frozenset[int] = frozenset()

    @property
    def default_channel(self) -> Declares:
        return Declares()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None: ...

    def connect(self) -> None: ...

    def collect(self, socket_timeout: float | None = None) -> None: ...

    def close(self) -> None: ...

    def ensure(self, _: object, call: Any, **__: object) -> Any:
        return call

    @contextmanager
    def channel(self) -> Iterator[Any]:
        yield Declares()

    @contextmanager
    def _reraise_as_library_errors(self) -> Iterator[None]:
        yield


class Named(Connection):
    """By a URL, which kombu has read."""

    def __init__(self, url: str) -> None:
        options = {"master_name": "mine"} if url.startswith("sentinel") else {}
        self._read = kombu.connection.Connection(url, transport_options=options)

    def __getattribute__(self, name: str) -> Any:
        told = ("transport", "transport_options", "hostname", "port", "virtual_host", "alt")
        whose = self._read if name in (*told, "switch") else super()
        return whose.__getattribute__(name)


def connection() -> Connection:
    """One of the process that runs."""
    urls, kernel = current().urls, Kernel.here()
    if not urls or kernel.running is None:
        return Connection()
    return Named(urls[sum(map(ord, kernel.running.process.name)) % len(urls)])


class Declares:
    """A channel on which queues are declared; all are there, or none may be added."""

    connection = SimpleNamespace(client=Connection)

    def prepare_queue_arguments(self, arguments: Any, **_: object) -> Any:
        return arguments

    def queue_declare(self, queue: str, **_: object) -> tuple[str, int, int]:
        if not current().lets_declare:
            raise AccessRefused(f"no queue {queue}")
        return queue, 0, 0


class Producer:
    """Publishes as kombu's does, and does not try again."""

    def __init__(self, *_: object, **__: object) -> None:
        self.connection = connection()

    def maybe_declare(self, *_: object) -> None: ...

    def revive(self, _: object) -> None: ...

    def publish(
        self,
        body: Any,
        routing_key: str | None = None,
        exchange: Any = "",
        headers: Mapping[str, Any] | None = None,
        serializer: str | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        **properties: Any,
    ) -> None:
        if content_type is None:
            content_type, content_encoding, body = dumps(body, serializer=serializer or "json")
        data = body if isinstance(body, bytes) else body.encode()
        told = {name: value for name, value in properties.items() if name not in _OF_KOMBU}
        name = getattr(exchange, "name", exchange) or ""
        delay, queue = _way(name, routing_key or "")
        how = (dict(headers or {}), told, content_type, content_encoding, name, routing_key)
        frame = pickle.dumps(how)
        task, kind = str((headers or {}).get("id")), str((headers or {}).get("task"))
        identity = identity_in(headers or {"id": None})
        current().publish(Sent(queue, data, frame, task, kind, delay, identity))


def _way(exchange: str, routing_key: str) -> tuple[int, str]:
    """After how many seconds a message comes to which queue."""
    waits = exchange == level_name(MAX_LEVEL)
    if not waits and exchange != CELERY_DELAYED_DELIVERY_EXCHANGE:
        return 0, routing_key
    *bits, queue = routing_key.split(".", MAX_NUMBER_OF_BITS_TO_USE)
    return int("".join(bits), 2) if waits else 0, queue


_OF_KOMBU = frozenset(
    {"declare", "retry", "retry_policy", "compression", "timeout", "confirm_timeout"}
)


class Application(Celery):  # type: ignore[misc]
    """One whose messages go to the broker of the schedule."""

    producer_pool = SimpleNamespace(connections=SimpleNamespace(connection=Connection()))

    def now(self) -> datetime:
        return datetime.fromtimestamp(time.time(), UTC)

    @contextmanager
    def producer_or_acquire(self, producer: Any = None) -> Iterator[Any]:
        yield producer or Producer()

    def connection_for_write(self, *_: object, **__: object) -> Any:
        return connection()

    connection_for_read = connection_for_write


_brokers: list[Broker] = []


def current() -> Broker:
    return _brokers[-1]


@contextmanager
def installed(broker: Broker) -> Iterator[Broker]:
    _brokers.append(broker)
    try:
        yield broker
    finally:
        _brokers.pop()


def refused() -> OperationalError:
    return OperationalError("the broker does not answer")


def missed() -> NotFound:
    return NotFound("no such exchange")
