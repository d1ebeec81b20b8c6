"""Nodes that are some milliseconds away: asked at once, five take no longer than one does.

On one machine the processor would be measured, which five servers share; ``make bench`` does that,
beside the least that it costs there. What is left here is what counts between machines: how often
somebody waits for an answer.
"""

from __future__ import annotations

import socket
import statistics
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from celery_dlock.core.state import Outcome
from celery_dlock.stores.base import BackendOptions, LockBackend
from celery_dlock.stores.redis.store import RedisBackend
from celery_dlock.stores.redlock.store import RedlockBackend
from celery_dlock.testing.contract.words import claim, running
from tests.services.redis_nodes import RedisNodes, redlock_url

pytestmark = pytest.mark.server("redis")

#: Seconds from a request to its arrival.
AWAY = 0.02
CYCLES = 15


@contextmanager
def away(port: int) -> Iterator[int]:
    """The port of a server that is as far away."""

    def forward(source: socket.socket, target: socket.socket, delay: float) -> None:
        pause = threading.Event()
        with suppress(OSError):
            while data := source.recv(65536):
                pause.wait(delay)
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", port))
                for each in (client, server):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for args in ((client, server, AWAY), (server, client, 0.0)):
                    threading.Thread(target=forward, args=args, daemon=True).start()

    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=serve)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def cycle(store: LockBackend) -> float:
    mine = claim("a", key=uuid.uuid4().hex)
    began = time.monotonic()
    running(store.enter(mine))
    store.leave(mine, Outcome.DONE)
    return time.monotonic() - began


def test_five_nodes_take_at_most_twice_as_long_as_one(redis_nodes: RedisNodes) -> None:
    with ExitStack() as stack:
        ports = [stack.enter_context(away(node.port)) for node in redis_nodes]
        options = BackendOptions(f"test-{uuid.uuid4().hex}", driver={"socket_timeout": 5})
        one = RedisBackend.from_url(f"redis://127.0.0.1:{ports[0]}/0", options)
        five = RedlockBackend.from_url(redlock_url(ports), options)
        for store in (one, five):
            stack.callback(store.close)
            cycle(store)
        times = [(cycle(one), cycle(five)) for _ in range(CYCLES)]

    ratio = statistics.median(five for _, five in times) / statistics.median(t for t, _ in times)
    assert 1.2 < ratio <= 2.0  # three flights for two round trips
