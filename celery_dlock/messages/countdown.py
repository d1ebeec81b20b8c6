"""Who waits for a countdown, and how long it may be: broker, worker, and the way back from there.

A message with a countdown is not acknowledged before it is due. A broker with a visibility timeout
delivers one that waits for longer than that again while it waits, and again, without end
(celery/celery#3270, #4400); and each duplicate that meets the running task would
leave one of its own.

With RabbitMQ's quorum queues Celery has the broker wait (its native delayed delivery). That counts
whole seconds, from one on, and fails below; and it finds the way back to the queue that the message
came from by the routing key alone, for which Celery takes that of the default queue. Here it is
that of the message. Where RabbitMQ could not find back the worker waits, as over any other broker,
and so it does for less than a second.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from celery.utils.quorum_queues import detect_quorum_queues
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.entity import Queue
from kombu.transport.native_delayed_delivery import (
    CELERY_DELAYED_DELIVERY_EXCHANGE,
    MAX_NUMBER_OF_BITS_TO_USE,
)

from celery_dlock.core.checks import duration

#: What stands before the routing key of a message for which RabbitMQ has waited.
_DELAY = re.compile(rf"^(?:[01]\.){{{MAX_NUMBER_OF_BITS_TO_USE}}}")

#: RabbitMQ takes a message that carries these of an earlier wait for one that goes in circles, and
#: drops it. Celery 5.5 leaves them in.
_OF_EARLIER_WAITS = ("x-death", "x-first-death-", "x-last-death-")


def seconds_until(app: Any, when: float | datetime | str) -> float:
    """How far off *when* is, which may be a number of seconds itself; not negative."""
    if isinstance(when, int | float):
        return max(0.0, when)
    left: timedelta = maybe_make_aware(maybe_iso8601(when)) - maybe_make_aware(app.now())
    return max(0.0, left.total_seconds())


def rabbitmq_waits(app: Any) -> bool:
    """Whether Celery leaves countdowns to RabbitMQ."""
    kind = app.producer_pool.connections.connection.transport.driver_type
    return bool(detect_quorum_queues(app, kind)[0])


def countdown_from(app: Any, seconds: float) -> float:
    """*seconds*, or the least more that Celery can publish a message with."""
    return max(1.0, seconds) if rabbitmq_waits(app) else seconds


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
    return {exchange.name for exchange in (*own, *(each.exchange for each in queue.bindings))}


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


#: What kombu takes where ``broker_transport_options`` says nothing, in seconds.
_USUAL = {"redis": 3600.0, "rediss": 3600.0, "sentinel": 3600.0, "sqs": 1800.0}

#: How long a finished task is remembered at least, in seconds, where ``dlock_done_ttl`` is not set.
REMEMBERED = 7200.0


def visibility_timeout(app: Any) -> float:
    """Seconds; infinite for a broker that keeps to the connection instead."""
    options = app.conf.broker_transport_options or {}
    if "visibility_timeout" in options:
        return duration("visibility_timeout", options["visibility_timeout"])
    urls = app.conf.broker_read_url or ""
    first = urls if isinstance(urls, str) else urls[0]
    return _USUAL.get(first.partition("://")[0].partition("+")[0], math.inf)


def longest_countdown(app: Any) -> float:
    """Seconds that a message may wait to be due, with time to be delivered and acknowledged."""
    return visibility_timeout(app) / 2


def remembered(app: Any, done_ttl: float | None) -> float:
    """Seconds for which a finished task is remembered; *done_ttl* is what the settings say."""
    if done_ttl is not None:
        return done_ttl
    visible = visibility_timeout(app)
    return REMEMBERED if math.isinf(visible) else max(REMEMBERED, 2 * visible)
