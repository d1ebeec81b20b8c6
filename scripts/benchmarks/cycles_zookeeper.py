"""ZooKeeper: against two bare multi-operations, the least for a version row and a holder."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from kazoo.client import KazooClient

from scripts.benchmarks.cycles import Cycle, compare, ours, store
from scripts.benchmarks.measure import Measured
from tests.services.zookeeper import ZooKeeperServer


@contextmanager
def connected(server: ZooKeeperServer) -> Iterator[Any]:
    client = KazooClient(f"127.0.0.1:{server.port}")
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def multi(client: Any) -> Cycle:
    """One multi-operation in, one out: a version row, and a holder that goes with its session."""

    def cycle() -> None:
        holder = f"/floor/{uuid.uuid4().hex}"
        enter = client.transaction()
        enter.create("/floor/guard", b"version")
        enter.create(holder, b"", ephemeral=True)
        leave = client.transaction()
        leave.delete("/floor/guard")
        leave.delete(holder)
        for transaction in (enter, leave):
            assert not any(isinstance(done, Exception) for done in transaction.commit())

    return cycle


def create_and_delete(client: Any) -> Cycle:
    def cycle() -> None:
        client.create("/floor/one", b"", ephemeral=True)
        client.delete("/floor/one")

    return cycle


def recipe(client: Any) -> Cycle:
    def cycle() -> None:
        lock = client.Lock("/recipe", "me")
        assert lock.acquire(blocking=False)
        lock.release()

    return cycle


def zookeeper_cycles(server: ZooKeeperServer, times: int = 300, rounds: int = 5) -> list[Measured]:
    """The first is the floor."""
    with connected(server) as client, closing(store(server.url)) as backend:
        client.ensure_path("/floor")
        contestants = {
            "a bare multi in, a bare multi out": multi(client),
            "celery_dlock": ours(backend),
            "one create, one delete": create_and_delete(client),
            "kazoo.recipe.lock": recipe(client),
        }
        return compare(contestants, times, rounds)
