"""A Redis that has no memory left, and evicts nothing: who holds a key keeps it, and can leave."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest

from celery_dlock.core.state import WINDOW, Busy, Drop, Left, Outcome, Reason, Renewed, Run
from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.base import BackendOptions, LockBackend
from celery_dlock.stores.redis.cluster import RedisClusterBackend
from celery_dlock.stores.redis.sentinel import RedisSentinelBackend
from celery_dlock.stores.redis.store import RedisBackend
from celery_dlock.stores.redlock.store import RedlockBackend
from celery_dlock.testing import ManualClock
from celery_dlock.testing.contract.words import QUEUE, claim, park, running, woken
from tests.contract.redis_store import StoreOnRedis, store_on
from tests.services.redis import RedisServer

pytestmark = pytest.mark.server("redis")

STORES: dict[str, tuple[type[LockBackend], Callable[[Any], Sequence[RedisServer]]]] = {
    "redis_server": (RedisBackend, lambda server: [server]),
    "redis_sentinel": (RedisSentinelBackend, lambda sentinel: sentinel.servers),
    "redis_cluster": (RedisClusterBackend, lambda cluster: cluster.servers),
    "redis_nodes": (RedlockBackend, lambda nodes: nodes),
}


@dataclass
class Filled:
    """A store, and its servers, which can be left without memory."""

    backend: LockBackend
    servers: Sequence[RedisServer]

    @contextmanager
    def without_memory(self) -> Iterator[None]:
        self._allow(1)
        try:
            yield
        finally:
            self._allow(0)

    def _allow(self, size: int) -> None:
        for server in self.servers:
            with server.client() as client:
                client.config_set("maxmemory", size)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[Filled]:
    backend_class, servers_of = STORES[request.param]
    servers = request.getfixturevalue(request.param)
    options = BackendOptions(prefix=f"full-{uuid.uuid4().hex}", clock=clock)
    with closing(backend_class.from_url(servers.url, options)) as backend:
        yield Filled(backend, servers_of(servers))


def test_a_holder_keeps_its_key_and_gives_it_back(store: Filled, clock: ManualClock) -> None:
    backend = store.backend
    mine = [claim("alone", key="other"), claim("a")]
    for one in mine:
        running(backend.enter(one))
    park(backend, "b")
    with store.without_memory():
        for _ in range(3):
            clock.advance(6)
            assert [type(verdict) for verdict in backend.renew(mine)] == [Renewed, Renewed]
            assert backend.sweep().wakes == ()

        replies = [backend.leave(one, Outcome.DONE) for one in mine]

        assert [reply.verdict for reply in replies] == [Left(carried=True)] * 2
        assert [woken(reply) for reply in replies] == [[], ["b"]]
    assert backend.enter(claim("a", "copy")).verdict == Drop(Reason.DONE)
    running(backend.enter(claim("b", wait=QUEUE)))


def test_however_a_task_ends_its_key_is_free_for_the_next(store: Filled) -> None:
    backend = store.backend
    for outcome in Outcome:
        running(backend.enter(claim("a", key=outcome, wait=QUEUE)))
        park(backend, "b", key=outcome)
    with store.without_memory():
        for outcome in Outcome:
            reply = backend.leave(claim("a", key=outcome, wait=QUEUE), outcome, b"message")

            assert isinstance(reply.verdict, Left)
            assert woken(reply) == ["a" if outcome is Outcome.REPEAT else "b"]


def test_what_takes_room_is_refused_and_nothing_is_left_of_it(store: Filled) -> None:
    backend = store.backend
    running(backend.enter(claim("holder", key="taken")))
    with store.without_memory():
        with pytest.raises(BackendUnavailable):
            backend.enter(claim("a"))
        with suppress(BackendUnavailable):  # of a Redlock the nodes know who holds it
            reply = backend.enter(claim("a", key="taken", wait=QUEUE), b"message")
            assert isinstance(reply.verdict, Busy)

    assert backend.peek("taken").parked == 0
    running(backend.enter(claim("b")))


# The nodes of a Redlock have to write what a majority gives.
@pytest.mark.parametrize("store", [name for name in STORES if name != "redis_nodes"], indirect=True)
def test_whose_turn_it_is_may_take_it(store: Filled) -> None:
    running(store.backend.enter(claim("a")))
    park(store.backend, "b", "c", "d")
    woken(store.backend.leave(claim("a"), Outcome.DONE))

    with store.without_memory():
        running(store.backend.enter(claim("b", wait=QUEUE)))


# A Redis that evicts (``allkeys-…``) throws a part of a key away: what is left of it goes on.


def run_all(backend: LockBackend, clock: ManualClock) -> list[str]:
    """The tasks that run, in their order, until a sweep has nothing to do any more."""
    ran: list[str] = []
    while (swept := backend.sweep()).wakes or swept.next_in is not None:
        wakes = list(swept.wakes)
        for wake in wakes:
            mine = claim(wake.task, wait=QUEUE)
            if isinstance(backend.enter(mine, b"message").verdict, Run):
                ran.append(wake.task)
                wakes.extend(backend.leave(mine, Outcome.DONE).wakes)
        clock.advance(10)
    return ran


def evict(store: StoreOnRedis, part: str) -> None:
    name = next(name for name in store.names("key", "a") if part in name.split(":"))
    assert store.client.delete(name) == 1


@pytest.mark.parametrize(
    ("part", "kept"),
    [
        ("state", ["b", "c", "d"]),
        ("queue", ["d"]),
        ("entries", ["b", "c", "d"]),
        ("token", ["b", "c", "d"]),
    ],
)
def test_what_is_left_runs_and_so_does_what_is_parked_from_then_on(
    redis_server: RedisServer, part: str, kept: list[str]
) -> None:
    clock = ManualClock()
    with store_on(redis_server, clock) as store:
        running(store.backend.enter(claim("a")))
        park(store.backend, "b", "c")

        evict(store, part)
        store.backend.enter(claim("other"))  # which may get the key
        park(store.backend, "d")
        clock.advance(10)

        assert sorted(run_all(store.backend, clock)) == kept
        state = store.backend.peek("key")
        assert (state.waiting, state.parked) == ((), 0)


@pytest.mark.parametrize("newcomers", [[], ["d"]])
def test_a_queue_of_an_evicted_key_runs(redis_server: RedisServer, newcomers: list[str]) -> None:
    clock = ManualClock()
    with store_on(redis_server, clock) as store:
        running(store.backend.enter(claim("a")))
        waiting = [f"task {number}" for number in range(3 * WINDOW)]
        park(store.backend, *waiting)

        evict(store, "state")
        if newcomers:
            running(store.backend.enter(claim("other")))
            park(store.backend, *newcomers)
        clock.advance(10)

        assert sorted(run_all(store.backend, clock)) == sorted([*waiting, *newcomers])
