"""The brokers of a campaign: each can be killed, comes back with all it had, and delivers again.

Redis delivers again what was not acknowledged for some seconds; kombu's workers see to that by
themselves. RabbitMQ does when the connection has ended.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, Self

from tests.chaos.stores import DURABLE
from tests.services.durable import Way
from tests.services.rabbitmq import RabbitMQServer
from tests.services.redis import RedisServer
from tests.services.until import until

#: Seconds after which Redis delivers again; a task's body takes a fraction of one.
VISIBILITY = 6.0


class Broker(Protocol):
    """A server of its own; started on entering, gone after."""

    #: Whether it may lose a message on its way to a worker.
    loses: ClassVar[bool]

    @property
    def settings(self) -> Mapping[str, Any]:
        """Celery's settings for it."""

    def kill(self) -> None:
        """SIGKILL."""

    def start(self) -> None:
        """Start, with what was there before, and return when it answers."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: Any) -> None: ...


class Redis(RedisServer):
    """It forgets nothing, but a message is popped before it is noted as not acknowledged."""

    loses: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__(*DURABLE)

    @property
    def settings(self) -> Mapping[str, Any]:
        options = {
            "visibility_timeout": VISIBILITY,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
            "unacked_mutex_expire": 2,
        }
        return {"broker_url": self.url, "broker_transport_options": options}


class RabbitMQ(RabbitMQServer):
    """Messages and queues are durable, and publishers wait until they are."""

    loses: ClassVar[bool] = False

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"broker_url": self.url, "broker_transport_options": {"confirm_publish": True}}


class WayToRabbitMQ(Way):
    """To a node that outlives it and the campaign, which has a queue of its own there."""

    loses: ClassVar[bool] = False

    def __init__(self, node: RabbitMQServer) -> None:
        super().__init__(node)
        self._queue = f"chaos-{uuid.uuid4().hex}"

    @property
    def settings(self) -> Mapping[str, Any]:
        options = {"broker_transport_options": {"confirm_publish": True}}
        return {"broker_url": self.url, "task_default_queue": self._queue, **options}


class QuorumQueues(RabbitMQ):
    """Countdowns are waited for in queues of their own, which come back with the others."""

    @property
    def settings(self) -> Mapping[str, Any]:
        kind = {"exchange_type": "topic", "queue_arguments": {"x-queue-type": "quorum"}}
        return {**super().settings, "task_queues": {"celery": {"exchange": "celery", **kind}}}

    def kill(self) -> None:
        """SIGKILL, once the queue would be found again."""
        until("the queue is on disk", lambda: self.will_find("celery"))
        super().kill()


BROKERS: Mapping[str, Callable[[], Broker]] = {
    "redis": Redis,
    "rabbitmq": RabbitMQ,
    "rabbitmq-quorum": QuorumQueues,
}
