"""Keys of a cluster are listed although slots move to other masters between two pages."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice

import pytest

from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.redis.cluster import Position, RedisClusterBackend
from celery_dlock.stores.redis.wire import shard_of
from celery_dlock.testing.contract.words import claim, running
from tests.contract.redis_store import requests_sent
from tests.services.redis import RedisServer
from tests.services.redis_cluster import RedisCluster, tell
from tests.services.slots import Move
from tests.services.until import until

pytestmark = pytest.mark.server("redis")

KEYS = [f"key {n}" for n in range(400)]


@contextmanager
def holding(cluster: RedisCluster) -> Iterator[RedisClusterBackend]:
    """A store with a prefix of its own, in which all of ``KEYS`` are held."""
    options = BackendOptions(prefix=f"test-{uuid.uuid4().hex}")
    with closing(RedisClusterBackend.from_url(cluster.url, options)) as store:
        for key in KEYS:
            running(store.enter(claim("a", key=key, ttl=3600)))
        yield store


@pytest.fixture
def store(redis_cluster: RedisCluster) -> Iterator[RedisClusterBackend]:
    with holding(redis_cluster) as store:
        yield store


def at(cluster: RedisCluster, cursor: str | None) -> RedisServer:
    """The master at which a list is."""
    master = Position.of(cursor or "").master
    return next(s for s in cluster.servers if master.endswith(f":{s.port}"))


def some_of(cluster: RedisCluster, store: RedisClusterBackend, server: RedisServer) -> list[str]:
    """The indexes of some shards of *server* with keys, which the list has hardly told yet."""
    shards = {shard_of(key) for key in KEYS}
    indexes = (store._indexes[shard] for shard in sorted(shards, reverse=True))
    return list(islice((i for i in indexes if cluster.master_of(i) is server), 3))


def move(cluster: RedisCluster, index: str, target: RedisServer) -> None:
    """The slot of *index*, with all that is in it; every server knows of it."""
    on_its_way = Move(cluster, index, target)
    on_its_way.begin()
    on_its_way.end()
    slot = on_its_way.slot
    until("all know of it", lambda: all(has(server, slot, target) for server in cluster.servers))


def has(server: RedisServer, slot: int, target: RedisServer) -> bool:
    ranges = tell(server, "CLUSTER", "SLOTS")
    return any(first <= slot <= last and at[1] == target.port for first, last, at, *_ in ranges)


def test_no_key_is_left_out_when_slots_move(own_redis_cluster: RedisCluster) -> None:
    with holding(own_redis_cluster) as store:
        for moves in (to_where_the_list_is, to_where_the_list_was):
            page = store.keys(limit=10)
            found = [*page.keys]
            while len(found) < 100:
                page = store.keys(page.cursor or "", 10)
                found += page.keys
            found += moves(own_redis_cluster, store, page.cursor or "")

            assert set(found) == set(KEYS), moves.__name__


def to_where_the_list_is(
    cluster: RedisCluster, store: RedisClusterBackend, cursor: str
) -> Iterator[str]:
    """The rest of the keys; some that nobody has seen come to the first master meanwhile."""
    first = at(cluster, cursor)
    another = next(server for server in cluster.servers[:3] if server is not first)
    for index in some_of(cluster, store, another):
        move(cluster, index, first)
    yield from rest(store, cursor)


def to_where_the_list_was(
    cluster: RedisCluster, store: RedisClusterBackend, cursor: str
) -> Iterator[str]:
    """The rest of the keys; some come to the first master when that is done."""
    first = at(cluster, cursor)
    while not Position.of(cursor).done or at(cluster, cursor) is first:
        page = store.keys(cursor, 10)
        yield from page.keys
        cursor = page.cursor or ""
    for index in some_of(cluster, store, at(cluster, cursor)):
        move(cluster, index, first)
    yield from rest(store, cursor)


def rest(store: RedisClusterBackend, cursor: str | None) -> Iterator[str]:
    while cursor is not None:
        page = store.keys(cursor, 100)
        yield from page.keys
        cursor = page.cursor


def test_a_vanished_master_is_told_where_its_slots_went(store: RedisClusterBackend) -> None:
    cursor = store.keys(limit=10).cursor

    assert set(rest(store, f"{cursor}-gone")) == set(KEYS)


def test_a_cursor_reaches_no_server_that_is_not_of_the_cluster(
    redis_server: RedisServer, store: RedisClusterBackend
) -> None:
    with requests_sent() as sent:
        store.keys(f"c7:0:1:127.0.0.1:{redis_server.port}")

    assert redis_server.port not in sent


def test_a_hundred_keys_take_one_look_at_each_master(store: RedisClusterBackend) -> None:
    store.look(KEYS)

    with requests_sent() as sent:
        assert all(state.holders for state in store.look(KEYS[:100]))

    assert list(sent.values()) == [1, 1, 1]
