"""The kinds of broker and the two of results, as parts of a lab's configuration.

Each lab has a queue name of its own, so labs may share a server.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import redis
from amqp.exceptions import NotFound
from celery import Celery
from kombu import pools
from kombu.connection import Connection

from celery_dlock.runtime import forget
from example_project.broker import transport_options

BROKER, RESULTS, LOCKS = 8, 9, 10


def over_folder(folder: Path) -> dict[str, Any]:
    """The shop's broker, in files below *folder*."""
    return {
        **_common(),
        "broker_url": "filesystem://",
        "broker_transport": "example_project.broker:Transport",
        "broker_transport_options": transport_options(folder / "broker"),
    }


def over_redis(port: int) -> dict[str, Any]:
    """A database of the server at *port*, emptied."""
    return {**_common(), "broker_url": _emptied(port, BROKER)}


def over_rabbitmq(url: str) -> dict[str, Any]:
    """The node at *url*. What was published is on its disk; queues know priorities."""
    return {
        **_common(),
        "broker_url": url,
        "broker_transport_options": {"confirm_publish": True},
        "task_queue_max_priority": 10,
    }


def over_quorum_queues(url: str, *more: str) -> dict[str, Any]:
    """The node at *url*, with quorum queues whose countdowns RabbitMQ itself waits for.

    That takes exchanges that are not direct. Beside its queue are *more*, each with its exchange.
    """
    common = _common()
    kind = {"exchange_type": "topic", "queue_arguments": {"x-queue-type": "quorum"}}
    names = (common["task_default_queue"], *more)
    return {
        **common,
        "broker_url": url,
        "broker_transport_options": {"confirm_publish": True},
        "task_queues": {name: {"exchange": name, **kind} for name in names},
    }


def kept_in_redis(port: int) -> dict[str, Any]:
    """Results and locks, each in a database of the server at *port*, emptied."""
    return {"result_backend": _emptied(port, RESULTS), "dlock_url": _emptied(port, LOCKS)}


def kept_in_sqlite(folder: Path) -> dict[str, Any]:
    """Results and locks, each in a file in *folder*."""
    return {
        "result_backend": f"db+sqlite:///{folder / 'results.db'}",
        "dlock_url": f"sqlite:///{folder / 'locks.db'}",
    }


def left(app: Celery) -> int:
    """How many of its messages lie in the broker, also unacknowledged ones where they can be seen.

    RabbitMQ does not show those of a worker that runs; once it has stopped they lie in the queue.
    """
    return in_queues(app) + len(handed_out(app))


def in_queues(app: Celery) -> int:
    """How many of its messages no worker has."""
    with app.connection_for_read() as connection:
        return sum(_size(connection, queue) for queue in queues_of(app))


def handed_out(app: Celery) -> list[str]:
    """What workers have of its queues and have not acknowledged, each by its correlation id; none
    where that cannot be seen.
    """
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        if connection.transport.driver_type != "redis":
            return []
        with channel.conn_or_acquire() as client:
            # They are those of all queues of the database, each with its routing key.
            messages = [json.loads(text) for text in client.hvals(channel.unacked_key)]
        return [
            str(message["properties"].get("correlation_id"))
            for message, _, queue in messages
            if queue in queues_of(app)
        ]


def lying_in(app: Celery) -> list[tuple[str, Any]]:
    """The messages that lie in the broker, each with its queue and its headers; they are taken."""
    with app.connection_for_read() as connection:
        return [
            (queue, message.headers)
            for queue in queues_of(app)
            for _ in range(_size(connection, queue))
            if (message := connection.default_channel.basic_get(queue, no_ack=True))
        ]


def queues_of(app: Celery) -> tuple[str, str]:
    """Its queue, and the one beside it for what is woken."""
    queue = app.conf.task_default_queue
    return (queue, f"{queue}.woken")


def _size(connection: Connection, queue: str) -> int:
    if connection.transport.driver_type != "amqp":
        return int(connection.default_channel._size(queue))
    try:
        with connection.channel() as channel:
            return int(channel.queue_declare(queue, passive=True).message_count)
    except NotFound:
        return 0


def _common() -> dict[str, Any]:
    return {
        "task_default_queue": f"lab-{uuid.uuid4().hex}",
        "worker_enable_remote_control": False,
        "broker_connection_retry_on_startup": True,
    }


def _emptied(port: int, database: int) -> str:
    with redis.Redis(port=port, db=database) as client:
        client.flushdb()
    return f"redis://127.0.0.1:{port}/{database}"


def close(app: Celery) -> None:
    """Give back every connection of this process's *app*, before its servers are gone."""
    if hasattr(app.backend, "result_consumer"):
        app.backend.result_consumer.stop()
        # A result that is collected later would ask its server, which is gone by then.
        app.backend.remove_pending_result = lambda result: result
        app.backend.client.connection_pool.disconnect()
    app.close()
    pools.reset()  # kombu keeps one a URL, for all apps
    forget(app)
