"""How a message that is published once more finds its way back to where it came from.

It goes by the exchange that it came by. kombu's own transports (Redis, SQL, files, …) know the type
of an exchange only on a connection over which it was declared. Elsewhere they take it for direct,
find no queue and drop the message without an error. Celery declares what it publishes to by the
name of a queue; a message that goes back to where it came from names an exchange only.

RabbitMQ, which waits for a countdown, finds the way back to the queue that the message came from by
the routing key alone, for which Celery takes that of the default queue. Here it is that of the
message. Where RabbitMQ could not find back the worker waits, as over any other broker.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from celery import Celery
from kombu.entity import Queue
from kombu.transport import virtual
from kombu.transport.native_delayed_delivery import (
    CELERY_DELAYED_DELIVERY_EXCHANGE,
    MAX_NUMBER_OF_BITS_TO_USE,
)

from celery_dlock.messages.countdown import rabbitmq_waits, seconds_until

#: What stands before the routing key of a message for which RabbitMQ has waited.
_DELAY = re.compile(rf"^(?:[01]\.){{{MAX_NUMBER_OF_BITS_TO_USE}}}")

#: RabbitMQ takes a message that carries these of an earlier wait for one that goes in circles, and
#: drops it. Celery 5.5 leaves them in.
_OF_EARLIER_WAITS = ("x-death", "x-first-death-", "x-last-death-")


def goes_by_exchange(connection: Any) -> bool:
    """Whether a queue has to be bound to an exchange, also for a message that names the queue.

    That is so of Google Pub/Sub: its queues are subscriptions, and messages go to a topic.
    """
    return bool(connection.transport.driver_type == "gcpubsub")


def to_declare(app: Celery, producer: Any, exchange: str, routing_key: str) -> list[Any]:
    """What *producer* declares for a message by *exchange*: once for each connection."""
    if not isinstance(producer.connection.transport, virtual.Transport):
        return []
    if not exchange:
        home = app.amqp.queues.get(routing_key)
        return [home] if home is not None and goes_by_exchange(producer.connection) else []
    return [
        queue.exchange if _is_of_one_worker(queue) else queue for queue in _bound(app, exchange)
    ]


def instead_of_all(app: Celery, exchange: str) -> str | None:
    """The queue for a message that is rescheduled and came by *exchange* to all workers.

    Each of those that were refused would send it to all of them, and so on. ``None`` for any other
    message, and where this worker consumes no other queue.
    """
    if not exchange or not any(map(_is_fanout, _bound(app, exchange))):
        return None
    consumed = app.amqp.queues.consume_from.values()
    return next((str(queue.name) for queue in consumed if not _is_fanout(queue)), None)


def lead_back(app: Any, options: dict[str, Any]) -> None:
    """Change *options*, with which Celery would publish a message again, so that it finds back."""
    wait = seconds_until(app, options.get("eta") or options.get("countdown") or 0.0)
    if wait <= 0 or not rabbitmq_waits(app):
        return
    headers = options.get("headers") or {}
    headers = {n: v for n, v in headers.items() if not n.startswith(_OF_EARLIER_WAITS)}
    options |= {"headers": headers, "countdown": wait, "eta": None}
    if wait >= 1 and _finds_back(app, options):
        return
    due = datetime.now(UTC) + timedelta(seconds=wait)
    options |= {"headers": {**headers, "eta": due.isoformat()}, "countdown": None}


def _finds_back(app: Any, options: dict[str, Any]) -> bool:
    """Whether RabbitMQ will, after a change of *options* if it takes one."""
    if options.get("queue"):
        return True
    came_by = options.get("routing_key") or ""
    key = _DELAY.sub("", came_by, count=1)
    homes = [queue for queue in app.amqp.queues.values() if _waits_for(queue, key)]
    exchanges = {queue.exchange.name for queue in homes}
    if not homes or (key == came_by and exchanges != {options.get("exchange")}):
        return False
    options.pop("exchange", None)
    options.pop("routing_key", None)
    new: Any = Queue
    options["queue"] = new(homes[0].name, homes[0].exchange, key)  # Celery reads the key off this
    return True


def queues_reached(queues: Iterable[Any], exchange: str, routing_key: str) -> list[Any]:
    """Those of *queues* to which a message goes by *exchange* and *routing_key*; or may have gone.

    None where that cannot be told: one of them is bound in some other way.
    """
    if exchange.endswith(CELERY_DELAYED_DELIVERY_EXCHANGE):
        key = _DELAY.sub("", routing_key, count=1)
        return [queue for queue in queues if _waits_for(queue, key)]
    bound = [queue for queue in queues if exchange in exchanges_of(queue)]
    kinds = {queue.exchange.type if not queue.bindings else "several" for queue in bound}
    if kinds == {"direct"}:
        return [queue for queue in bound if queue.routing_key == routing_key]
    if kinds == {"topic"}:
        words = routing_key.split(".")
        return [q for q in bound if _matches(str(q.routing_key or "").split("."), words)]
    return []


def exchanges_of(queue: Any) -> set[str]:
    """The names of the exchanges that *queue* is bound to."""
    own = () if queue.exchange is None else (queue.exchange,)
    return {exchange.name for exchange in (*own, *(binding.exchange for binding in queue.bindings))}


def _waits_for(queue: Any, key: str) -> bool:
    """Whether RabbitMQ would bring there what has waited, as Celery's workers bind it."""
    exchange = queue.exchange
    if not key or exchange is None or exchange.type == "direct":
        return False
    return _matches(["#", *str(queue.routing_key or "").split(".")], key.split("."))


def _matches(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """AMQP's rule for topics: ``*`` is one word, ``#`` any number."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_matches(pattern[1:], words[n:]) for n in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _matches(pattern[1:], words[1:])


def _bound(app: Celery, exchange: str) -> list[Any]:
    return [queue for queue in app.amqp.queues.values() if exchange in exchanges_of(queue)]


def _is_fanout(queue: Any) -> bool:
    return queue.exchange is not None and queue.exchange.type == "fanout"


def _is_of_one_worker(queue: Any) -> bool:
    """Whether only the worker that consumes *queue* may declare it."""
    return _is_fanout(queue) or not queue.name or queue.exclusive or queue.auto_delete
