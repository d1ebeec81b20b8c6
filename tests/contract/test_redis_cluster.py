"""The store on a Redis Cluster."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from celery_dlock.core.lease import SECOND
from celery_dlock.core.operations import Postpone, Replay
from celery_dlock.core.state import Cause, Outcome, Renewed, Unknown, WaitMode
from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.base import BackendOptions, Swept
from celery_dlock.stores.redis.client import session_of
from celery_dlock.stores.redis.cluster import RedisClusterBackend
from celery_dlock.stores.redis.wire import base_name
from celery_dlock.testing import ManualClock
from celery_dlock.testing.contract import NoteStoreContract
from celery_dlock.testing.contract.words import QUEUE, claim, running
from tests.contract.redis_store import requests_sent
from tests.contract.suites import ManyServers
from tests.services.redis import RedisServer
from tests.services.redis_cluster import RedisCluster, tell

pytestmark = pytest.mark.server("redis")


class TestRedisCluster(ManyServers, NoteStoreContract):
    backend_class = RedisClusterBackend

    @pytest.fixture
    def url(self, redis_cluster: RedisCluster) -> str:
        return redis_cluster.url


@contextmanager
def opened(servers: RedisCluster, **driver: Any) -> Iterator[RedisClusterBackend]:
    """A store with a prefix of its own, connected."""
    options = BackendOptions(prefix=f"test-{uuid.uuid4().hex}", driver=driver)
    with closing(RedisClusterBackend.from_url(servers.url, options)) as store:
        store.sweep()
        yield store


def on_each_master(servers: RedisCluster, store: RedisClusterBackend) -> dict[RedisServer, str]:
    """A key that lies there, for each master."""
    found: dict[RedisServer, str] = {}
    for number in range(1000):
        key = f"key {number}"
        found.setdefault(servers.master_of(base_name(store._prefix, key)), key)
        if len(found) == 3:
            return found
    raise AssertionError("keys do not spread")


def test_an_operation_on_a_key_is_one_round_trip(redis_cluster: RedisCluster) -> None:
    with opened(redis_cluster) as store:
        running(store.enter(claim("warm")))
        store.leave(claim("warm"), Outcome.OVER)

        with requests_sent() as sent:
            running(store.enter(claim("a")))
            store.leave(claim("a"), Outcome.DONE)

        assert sum(sent.values()) == 2


def test_a_workers_leases_are_renewed_in_a_trip_to_each_master(redis_cluster: RedisCluster) -> None:
    with opened(redis_cluster) as store:
        mine = [claim("a", key=f"key {number}") for number in range(100)]
        for one in mine:
            running(store.enter(one))
        store.renew(mine)

        with requests_sent() as sent:
            assert all(isinstance(verdict, Renewed) for verdict in store.renew(mine))

        assert list(sent.values()) == [1, 1, 1]


def test_a_sweep_is_one_trip_to_each_master_and_one_more(redis_cluster: RedisCluster) -> None:
    clock = ManualClock()
    options = BackendOptions(prefix=f"test-{uuid.uuid4().hex}", clock=clock)
    with closing(RedisClusterBackend.from_url(redis_cluster.url, options)) as store:
        for number in range(100):
            running(store.enter(claim("a", key=f"key {number}")))
            store.enter(claim("b", key=f"key {number}", wait=QUEUE), b"message")
        with requests_sent() as sent:
            assert store.sweep() == Swept((), 10)
        assert list(sent.values()) == [1, 1, 1]
        clock.advance(10)
        store.sweep(limit=30)  # the script is loaded

        with requests_sent() as sent:
            assert len(store.sweep(limit=60).wakes) == 60
            assert list(sent.values()) == [2, 2, 2]
            assert len(store.sweep().wakes) == 10
            assert store.sweep() == Swept((), 5)

        assert list(sent.values()) == [5, 5, 5]


def test_a_master_that_hangs_keeps_its_own_keys_waiting(own_redis_cluster: RedisCluster) -> None:
    with opened(own_redis_cluster, socket_timeout=0.1) as store:
        keys = on_each_master(own_redis_cluster, store)
        mine = [claim("a", key=key) for key in keys.values()]
        for one in mine:
            running(store.enter(one))
            store.enter(claim("b", key=one.key, wait=QUEUE), b"message")
            store.cancel(one.key, "b")
        hung, its_key = next(iter(keys.items()))
        hung.pause()
        try:
            verdicts = dict(zip(keys.values(), store.renew(mine), strict=True))
            swept = store.sweep()
            with pytest.raises(BackendUnavailable):
                store.renew(mine[:1])
        finally:
            hung.resume()

        assert verdicts.pop(its_key) == Unknown()
        assert all(isinstance(verdict, Renewed) for verdict in verdicts.values())
        assert its_key not in {wake.key for wake in swept.wakes}


def test_without_any_master_the_store_is_unavailable(own_redis_cluster: RedisCluster) -> None:
    with opened(own_redis_cluster) as store:
        for server in own_redis_cluster.servers:
            server.kill()
        for operation in (store.sweep, lambda: store.renew([claim("a")]), store.dead):
            with pytest.raises(BackendUnavailable):
                operation()


def test_servers_that_forgot_their_scripts_get_them_again(redis_cluster: RedisCluster) -> None:
    with opened(redis_cluster) as store:
        mine = [claim("a", key=f"key {number}") for number in range(100)]
        for one in mine:
            running(store.enter(one))
            store.enter(claim("b", key=one.key, wait=QUEUE), b"message")
        for server in redis_cluster.servers:
            tell(server, "SCRIPT", "FLUSH")

        assert all(isinstance(verdict, Renewed) for verdict in store.renew(mine))
        assert len(store.parked(["b"])) == 100


def test_the_url_names_some_of_the_servers() -> None:
    driver = {"password": "p", "address_remap": print}
    url = "redis+cluster://u@h1,h2:7?socket_timeout=1"
    session: Any = RedisClusterBackend.from_url(url, BackendOptions(driver=driver))._session()
    assert session._servers.addresses == (("h1", 6379), ("h2", 7))
    expected = {"username": "u", "password": "p", "socket_timeout": 1.0, "address_remap": print}
    assert {name: session._options[name] for name in expected} == expected


def test_a_script_is_told_every_key_that_it_touches(redis_server: RedisServer) -> None:
    """Which a single server does not ask for, but shows; some that are managed refuse others."""
    clock = ManualClock()
    options = BackendOptions(prefix=f"test-{uuid.uuid4().hex}", clock=clock)
    with (
        closing(RedisClusterBackend(lambda: session_of(redis_server.url, {}), options)) as store,
        redis_server.client() as client,
        client.monitor() as seen,
    ):
        use(store, clock)
        client.echo("the end")

        told, undeclared, commands = set[str](), set[str](), 0
        while (command := seen.next_command())["command"] != "ECHO the end":
            name, *words = command["command"].split(" ")
            if name in ("EVAL", "EVALSHA"):
                told = {word for word in words if word.startswith(options.prefix)}
            elif command["client_type"] == "lua" and options.prefix in " ".join(words[:1]):
                commands += 1
                undeclared |= {words[0]} - told

    assert commands > 100
    assert undeclared == set()


def use(store: RedisClusterBackend, clock: ManualClock) -> None:
    """Ask for one of each."""
    running(store.enter(claim("first")))
    for task in ("second", "third", "fourth"):
        store.enter(claim(task, wait=QUEUE), b"message")
    store.enter(claim("returns", wait=WaitMode.PLACE))
    store.renew([claim("first")])
    store.peek("key")
    store.look(["key", "other"])
    store.position("key", "third")
    store.message("key", "third")
    store.leave(claim("first"), Outcome.DONE)
    store.leave(claim("second", wait=QUEUE), Outcome.REPEAT, b"message")
    store.cancel("key", "third")
    store.dead_letter("key", "fourth", Cause.RUNS_LOST)
    store.apply(Replay("key", "fourth"))
    store.apply(Postpone(claim("due"), b"message", 0, 0))
    store.reap("key")
    clock.advance(3600)
    assert store.sweep().wakes
    store.note("key", 1, {"a": b"note"})
    store.swap("name", None, b"value", SECOND)
