"""How a message goes once more by the exchange that it came by.

kombu's own transports (Redis, SQL, files, …) know the type of an exchange only on a connection over
which it was declared. Elsewhere they take it for direct, find no queue and drop the message without
an error. Celery declares what it publishes to by the name of a queue; a message that goes back to
where it came from names an exchange only.
"""

from __future__ import annotations

from typing import Any

from celery import Celery
from kombu.transport import virtual

from celery_dlock.messages.countdown import exchanges_of


def to_declare(app: Celery, producer: Any, exchange: str) -> list[Any]:
    """What *producer* declares for a message by *exchange*: once for each connection."""
    if not exchange or not isinstance(producer.connection.transport, virtual.Transport):
        return []
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


def _bound(app: Celery, exchange: str) -> list[Any]:
    return [queue for queue in app.amqp.queues.values() if exchange in exchanges_of(queue)]


def _is_fanout(queue: Any) -> bool:
    return queue.exchange is not None and queue.exchange.type == "fanout"


def _is_of_one_worker(queue: Any) -> bool:
    """Whether only the worker that consumes *queue* may declare it."""
    return _is_fanout(queue) or not queue.name or queue.exclusive or queue.auto_delete
