"""Brokers of a test's own that keep on disk what they have acknowledged, and what is left there.

Workers are supervised: kombu 5.7 sometimes ends one whose Redis goes away (closing the connection,
it restores messages through a client that is closed already, an AttributeError that nobody
expects).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import pytest
from celery.result import AsyncResult

from tests.services.brokers import left
from tests.services.lab import Lab
from tests.services.ports import free_ports
from tests.services.proxy import proxy_to
from tests.services.rabbitmq import RabbitMQServer
from tests.services.redis import RedisServer
from tests.services.require import require
from tests.services.started import Started
from tests.services.worker import Worker

Server = RedisServer | RabbitMQServer


class Way(Started):
    """A way to the node of the whole run, for who can only tell that it leads nowhere.

    When it is killed connections end and new ones are refused, as with a node's own end, and the
    node delivers again what was not acknowledged. What a node finds on its disk is not asked.
    """

    def __init__(self, node: RabbitMQServer) -> None:
        self._node = node
        self._open = ExitStack()
        (self.port,) = free_ports(1)

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def start(self) -> None:
        self._open.enter_context(proxy_to(self._node.port, self.port))

    def kill(self) -> None:
        self._open.close()

    def stop(self) -> None:
        self.kill()


def kinds(*names: str) -> list[Any]:
    """Parameters for a fixture: Redis is ``redis``, all others are ways to use RabbitMQ."""
    return [
        pytest.param(name, marks=pytest.mark.server("redis" if name == "redis" else "rabbitmq"))
        for name in names
    ]


def durable(kind: str) -> Server:
    """One of :func:`kinds`, not yet started."""
    if kind == "redis":
        require("redis")
        return RedisServer("--appendonly", "yes")
    require("rabbitmq")
    return RabbitMQServer()


def sometimes_away(request: pytest.FixtureRequest, kind: str) -> RedisServer | Way:
    """As :func:`durable`, where it is enough that clients find no broker for a while."""
    if kind == "redis":
        require("redis")
        return RedisServer("--appendonly", "yes")
    return Way(request.getfixturevalue("rabbitmq_server"))


def all_are_done(worker: Worker, sent: Iterable[AsyncResult]) -> bool:
    worker.start_if_gone()
    return all(result.ready() for result in sent)


def no_copy_is_left(worker: Worker, lab: Lab) -> bool:
    """Whether the worker, which stops, has met all that the broker delivers once more.

    It is not stopped before it has taken what lies there: a busy machine takes long for that.
    """
    worker.start_if_gone()
    if left(lab.app) > 0:
        return False
    worker.stop()
    return left(lab.app) == 0
