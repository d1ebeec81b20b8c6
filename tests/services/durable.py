"""Brokers of a test's own that keep on disk what they have acknowledged, and what is left there.

Workers are supervised: kombu 5.7 sometimes ends one whose Redis goes away (closing the connection,
it restores messages through a client that is closed already, an AttributeError that nobody
expects).
"""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from celery.result import AsyncResult

from tests.services.brokers import left
from tests.services.lab import Lab
from tests.services.rabbitmq import RabbitMQServer
from tests.services.redis import RedisServer
from tests.services.require import require
from tests.services.worker import Worker

Server = RedisServer | RabbitMQServer


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


def all_are_done(worker: Worker, sent: Iterable[AsyncResult]) -> bool:
    worker.start_if_gone()
    return all(result.ready() for result in sent)


def no_copy_is_left(worker: Worker, lab: Lab) -> bool:
    """Whether the worker, which stops, has met all that the broker delivers once more."""
    worker.stop()
    if left(lab.app) == 0:
        return True
    worker.start()
    return False
