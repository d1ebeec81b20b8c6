"""A Redlock on real servers, and what each of them knows of a key."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import pytest

from celery_dlock.core.state import Claim, EnterVerdict, Outcome, Run
from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.base import BackendOptions, Clock, Reply
from celery_dlock.stores.redis.wire import base_name
from celery_dlock.stores.redlock import wire as redlock_wire
from celery_dlock.stores.redlock.store import RedlockBackend
from celery_dlock.testing import ManualClock
from celery_dlock.testing.contract.words import claim
from tests.contract.key import Key
from tests.services.redis import RedisServer
from tests.services.redis_nodes import RedisNodes, redlock_url
from tests.services.until import until

#: Seconds for a node to answer: enough for one that runs, and not long to wait for one that hangs.
ANSWER = 0.8


class StoreOnNodes:
    """A :class:`RedlockBackend` with a prefix of its own; *ports* are those that it connects to."""

    def __init__(
        self, nodes: Sequence[RedisServer], clock: Clock | None, ports: Sequence[int], query: str
    ) -> None:
        self.nodes = nodes
        self.clock = clock
        self.prefix = f"test-{uuid.uuid4().hex}"
        self.url = redlock_url(ports or [node.port for node in nodes]) + query
        self._opened: list[RedlockBackend] = []
        self.backend = self.another()
        self.key = Key(self.backend, cast("Any", clock))

    def another(self, ports: Sequence[int] = ()) -> RedlockBackend:
        """The store as another process would build it."""
        driver = {"socket_timeout": ANSWER, "socket_connect_timeout": ANSWER}
        options = BackendOptions(prefix=self.prefix, clock=self.clock, driver=driver)
        backend = RedlockBackend.from_url(redlock_url(ports) if ports else self.url, options)
        self._opened.append(backend)
        return backend

    def close(self) -> None:
        for backend in self._opened:
            with suppress(BackendUnavailable):
                backend.close()

    def holders(self, node: int, key: str = "key") -> list[str]:
        """The tasks that hold *key* as far as this node knows."""
        look = self.look(node, key)
        return sorted(holder.task for holder in look.holders)

    def look(self, node: int, key: str = "key") -> redlock_wire.Look:
        names = [f"{self.prefix}:redlock:node", f"{base_name(self.prefix, key)}:lock"]
        now: Any = "" if self.clock is None else self.clock()
        with self.nodes[node].client() as client:
            answer = client.eval(redlock_wire._LOOK.text, 2, *names, now, uuid.uuid4().hex)
        look = redlock_wire.look(answer)
        assert look is not None
        return look

    def forget(self, node: int) -> None:
        """The node loses everything, and its connections stay."""
        with self.nodes[node].client() as client:
            client.flushall()


@contextmanager
def store_on_nodes(
    nodes: Sequence[RedisServer],
    clock: Clock | None = None,
    ports: Sequence[int] = (),
    query: str = "",
) -> Iterator[StoreOnNodes]:
    store = StoreOnNodes(nodes, clock, ports, query)
    try:
        yield store
    finally:
        store.close()


def warm(backend: RedlockBackend) -> None:
    """All nodes are raised and connected."""
    assert isinstance(backend.enter(claim("warm", key="warm")).verdict, Run)
    backend.leave(claim("warm", key="warm"), Outcome.OVER)


def eventually(
    backend: RedlockBackend, mine: Claim, message: bytes | None = None
) -> Reply[EnterVerdict]:
    """What *mine* is answered as soon as there is an answer: after a fault it takes a moment."""

    def answered() -> Reply[EnterVerdict] | None:
        try:
            return backend.enter(mine, message)
        except BackendUnavailable:
            return None

    found = until("an answer", answered)
    assert found is not None
    return found


def leaves(backend: RedlockBackend, mine: Claim, outcome: Outcome = Outcome.OVER) -> None:
    """Leave, until the queue's node has heard it."""

    def heard() -> bool:
        try:
            backend.leave(mine, outcome)
        except BackendUnavailable:
            return False
        return True

    until("the store has heard it", heard)


def gets_it(backend: RedlockBackend, mine: Claim) -> Run:
    """*mine* runs as soon as the nodes are back; somebody may be in the way for a moment."""

    def got() -> Run | None:
        verdict = eventually(backend, mine).verdict
        return verdict if isinstance(verdict, Run) else None

    found = until("the key", got)
    assert found is not None
    return found


Harm = Callable[[RedisServer], None]
HARMS = pytest.mark.parametrize("harm", [RedisServer.kill, RedisServer.pause])


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(own_redis_nodes: RedisNodes, clock: ManualClock) -> Iterator[StoreOnNodes]:
    """All nodes are raised and connected."""
    with store_on_nodes(own_redis_nodes, clock) as store:
        warm(store.backend)
        yield store
