"""What is declared before a message goes by an exchange once more.

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


def to_declare(app: Celery, connection: Any, exchange: str) -> list[Any]:
    """What to declare over *connection* for a message by *exchange*: once for each connection."""
    if not exchange or not isinstance(connection.transport, virtual.Transport):
        return []
    queues = [queue for queue in app.amqp.queues.values() if exchange in exchanges_of(queue)]
    return [queue.exchange if _is_of_one_worker(queue) else queue for queue in queues]


def _is_of_one_worker(queue: Any) -> bool:
    """Whether only the worker that consumes *queue* may declare it."""
    fanout = queue.exchange is not None and queue.exchange.type == "fanout"
    return bool(fanout or not queue.name or queue.exclusive or queue.auto_delete)
