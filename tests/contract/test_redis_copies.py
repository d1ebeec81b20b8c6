"""A hold that does not count before replicas have it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
from redis import Redis

from celery_dlock.core.state import Renewed, RenewVerdict
from celery_dlock.errors import BackendUnavailable
from celery_dlock.locks.manager import Keeping, LockManager
from celery_dlock.stores.base import Copies
from celery_dlock.stores.redis.wire import notes_of
from celery_dlock.testing.contract.words import QUEUE, claim, running
from tests.contract.redis_store import StoreOnRedis, requests_sent
from tests.services.redis import RedisServer
from tests.services.require import require
from tests.services.until import until

pytestmark = pytest.mark.server("redis")

ONE = Copies(1, timeout=2.0)


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[RedisServer, RedisServer]]:
    """A master and its replica."""
    require("redis")
    master = RedisServer("--repl-diskless-sync-delay", "0")
    replica = RedisServer("--replicaof", "127.0.0.1", str(master.port))
    with master, replica:
        until("it follows", lambda: replica.info("replication")["master_link_status"] == "up")
        until("it is known", lambda: master.info("replication")["connected_slaves"] == 1)
        yield master, replica


@pytest.fixture
def store(servers: tuple[RedisServer, RedisServer]) -> Iterator[StoreOnRedis]:
    store = StoreOnRedis(servers[0], None, copies=ONE)
    running(store.backend.enter(claim("warm", key="warm")))
    store.backend.renew([claim("warm", key="warm")])
    yield store
    store.backend.close()
    store.client.close()


@pytest.fixture
def deaf_replica(servers: tuple[RedisServer, RedisServer], store: StoreOnRedis) -> Iterator[None]:
    """It is there and has nothing to say."""
    servers[1].pause()
    yield
    servers[1].resume()


def test_what_counts_is_on_the_replica_in_one_round_trip(
    store: StoreOnRedis, servers: tuple[RedisServer, RedisServer]
) -> None:
    master, replica = servers
    backend, mine = store.backend, [claim("a", key=f"key {n}") for n in range(3)]
    for one in mine:
        running(backend.enter(one))
    backend.note("key", 5, {})  # loads the script

    def is_there(read: Callable[[Redis], object]) -> bool:
        with replica.client() as client:
            return bool(read(client))

    operations: dict[str, tuple[Callable[[], object], Callable[[Redis], object]]] = {
        "hold": (
            lambda: running(backend.enter(claim("a"))),
            lambda client: client.exists(store.names("key")[0]),
        ),
        "renewal": (lambda: backend.renew(mine), lambda client: client.ping()),
        "note": (
            lambda: backend.note("key", 5, {"a": b"a"}),
            lambda client: client.hget(notes_of(store.prefix, "key"), ":a") == b"a",
        ),
    }
    for name, (operation, read) in operations.items():
        with store.counted() as cost, requests_sent() as sent:
            assert operation(), name
            assert is_there(read), name

        assert sent[master.port] == 1
        assert (cost.commands["evalsha"], cost.commands["wait"]) == (1, 1)


@pytest.mark.usefixtures("deaf_replica")
def test_a_hold_or_a_note_that_no_replica_has_is_not_accepted(store: StoreOnRedis) -> None:
    with pytest.raises(BackendUnavailable, match="0 of 1 replicas"):
        store.backend.note("key", 5, {"a": b"a"})
    with pytest.raises(BackendUnavailable, match=r"0 of 1 replicas within 2 s"):
        store.backend.enter(claim("a", wait=QUEUE), b"message")

    state = store.backend.peek("key")
    assert (state.holders, state.waiting) == ((), ())


@pytest.mark.usefixtures("deaf_replica")
def test_a_message_that_only_the_store_may_have_is_not_given_back(store: StoreOnRedis) -> None:
    with pytest.raises(BackendUnavailable):
        store.backend.enter(claim("a", wait=QUEUE, keep=True), b"message")

    state = store.backend.peek("key")
    assert (state.holders, len(state.waiting) + len(state.grants)) == ((), 1)


def test_what_waits_stays_when_a_copy_of_it_finds_no_replica(
    store: StoreOnRedis, servers: tuple[RedisServer, RedisServer]
) -> None:
    running(store.backend.enter(claim("holder")))
    store.backend.enter(claim("a", wait=QUEUE), b"message")
    servers[1].pause()
    try:
        with pytest.raises(BackendUnavailable):
            store.backend.enter(claim("a", "copy", wait=QUEUE), b"message")
    finally:
        servers[1].resume()

    assert [entry.task for entry in store.backend.peek("key").waiting] == ["a"]


def test_a_renewal_that_no_replica_has_does_not_count(
    store: StoreOnRedis, servers: tuple[RedisServer, RedisServer]
) -> None:
    running(store.backend.enter(claim("a")))
    servers[1].pause()
    try:
        with pytest.raises(BackendUnavailable, match="0 of 1 replicas"):
            store.backend.renew([claim("a")])
    finally:
        servers[1].resume()
    (verdict,) = until("the replica is back", lambda: _renewed(store))
    assert isinstance(verdict, Renewed)


def _renewed(store: StoreOnRedis) -> Sequence[RenewVerdict]:
    try:
        return store.backend.renew([claim("a")])
    except BackendUnavailable:
        return []


@pytest.mark.usefixtures("deaf_replica")
def test_no_body_starts_on_a_hold_that_no_replica_has(store: StoreOnRedis) -> None:
    manager = LockManager(store.backend, wake=lambda wakes: None)

    with pytest.raises(BackendUnavailable):
        manager.acquire([claim("a")], Keeping(None, lambda term, reason: None))

    assert store.backend.peek("key").holders == ()
