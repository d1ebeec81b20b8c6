"""A Redis that has no memory left, and evicts nothing: who holds a key keeps it, and can leave."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest

from celery_dlock.core.state import Busy, Drop, Left, Outcome, Reason, Renewed
from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.base import BackendOptions, LockBackend
from celery_dlock.stores.redis.cluster import RedisClusterBackend
from celery_dlock.stores.redis.sentinel import RedisSentinelBackend
from celery_dlock.stores.redis.store import RedisBackend
from celery_dlock.stores.redlock.store import RedlockBackend
from celery_dlock.testing import ManualClock
from celery_dlock.testing.contract.words import QUEUE, claim, park, running, woken
from tests.services.redis import RedisServer

pytestmark = pytest.mark.server("redis")

Full = Callable[[], Any]

STORES: dict[str, tuple[type[LockBackend], Callable[[Any], Sequence[RedisServer]]]] = {
    "redis_server": (RedisBackend, lambda server: [server]),
    "redis_sentinel": (RedisSentinelBackend, lambda sentinel: sentinel.servers),
    "redis_cluster": (RedisClusterBackend, lambda cluster: cluster.servers),
    "redis_nodes": (RedlockBackend, lambda nodes: nodes),
}


@contextmanager
def full(servers: Sequence[RedisServer]) -> Iterator[None]:
    """No memory is left on any of *servers*."""

    def allow(size: int) -> None:
        for server in servers:
            with server.client() as client:
                client.config_set("maxmemory", size)

    allow(1)
    try:
        yield
    finally:
        allow(0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=STORES)
def servers(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def fixture_name(request: pytest.FixtureRequest) -> str:
    name: str = request.node.callspec.params["servers"]
    return name


@pytest.fixture
def backend(servers: Any, fixture_name: str, clock: ManualClock) -> Iterator[LockBackend]:
    options = BackendOptions(prefix=f"full-{uuid.uuid4().hex}", clock=clock)
    with closing(STORES[fixture_name][0].from_url(servers.url, options)) as backend:
        yield backend


@pytest.fixture
def no_memory(servers: Any, fixture_name: str) -> Full:
    return lambda: full(STORES[fixture_name][1](servers))


def test_a_holder_keeps_its_key_and_gives_it_back(
    backend: LockBackend, clock: ManualClock, no_memory: Full
) -> None:
    running(backend.enter(claim("a")))
    running(backend.enter(claim("alone", key="other")))
    park(backend, "b")
    with no_memory():
        for _ in range(3):
            clock.advance(6)
            verdicts = backend.renew([claim("alone", key="other"), claim("a")])
            assert [type(verdict) for verdict in verdicts] == [Renewed, Renewed]
            assert backend.sweep().wakes == ()

        assert backend.leave(claim("alone", key="other"), Outcome.DONE).verdict == Left(
            carried=True
        )
        reply = backend.leave(claim("a"), Outcome.DONE)

        assert reply.verdict == Left(carried=True)
        assert woken(reply) == ["b"]
    assert backend.enter(claim("a", "copy")).verdict == Drop(Reason.DONE)
    running(backend.enter(claim("b", wait=QUEUE)))


@pytest.mark.parametrize("outcome", Outcome)
def test_however_a_task_ends_its_key_is_free_for_the_next(
    backend: LockBackend, no_memory: Full, outcome: Outcome
) -> None:
    mine = claim("a", wait=QUEUE)
    running(backend.enter(mine))
    park(backend, "b")
    with no_memory():
        reply = backend.leave(mine, outcome, b"message")

        assert isinstance(reply.verdict, Left)
        assert woken(reply) == ["a" if outcome is Outcome.REPEAT else "b"]


def test_what_takes_room_is_refused_and_nothing_is_left_of_it(
    backend: LockBackend, no_memory: Full
) -> None:
    running(backend.enter(claim("holder", key="taken")))
    with no_memory():
        with pytest.raises(BackendUnavailable):
            backend.enter(claim("a"))
        with suppress(BackendUnavailable):  # of a Redlock the nodes know who holds it
            reply = backend.enter(claim("a", key="taken", wait=QUEUE), b"message")
            assert isinstance(reply.verdict, Busy)

    assert backend.peek("taken").parked == 0
    running(backend.enter(claim("b")))


# The nodes of a Redlock have to write what a majority gives.
@pytest.mark.parametrize(
    "servers", [name for name in STORES if name != "redis_nodes"], indirect=True
)
def test_whose_turn_it_is_may_take_it(backend: LockBackend, no_memory: Full) -> None:
    running(backend.enter(claim("a")))
    park(backend, "b", "c", "d")
    woken(backend.leave(claim("a"), Outcome.DONE))

    with no_memory():
        running(backend.enter(claim("b", wait=QUEUE)))
