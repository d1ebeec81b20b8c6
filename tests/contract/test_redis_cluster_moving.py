"""The store on a Redis Cluster while one of its slots is on its way to another master."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from celery_dlock.core.state import KeyState, Outcome, Renewed
from celery_dlock.errors import BackendUnavailable
from celery_dlock.ops.overview import look
from celery_dlock.stores.base import BackendOptions, Swept, Wake
from celery_dlock.stores.redis.cluster import RedisClusterBackend
from celery_dlock.stores.redis.wire import base_name, shard_of
from celery_dlock.testing import ManualClock
from celery_dlock.testing.contract.words import QUEUE, claim, listed_keys, running
from tests.contract.storage.dead_letters import die, names
from tests.services.redis_cluster import RedisCluster
from tests.services.slots import Move

pytestmark = pytest.mark.server("redis")

#: Of one shard, and one of another.
MOVED = [key for n in range(2000) if shard_of(key := f"key {n}") == shard_of("key")]
ELSEWHERE = next(key for n in range(100) if shard_of(key := f"other {n}") != shard_of("key"))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(own_redis_cluster: RedisCluster, clock: ManualClock) -> Iterator[RedisClusterBackend]:
    options = BackendOptions(clock=clock)
    with closing(RedisClusterBackend.from_url(own_redis_cluster.url, options)) as store:
        yield store


@pytest.fixture
def move(own_redis_cluster: RedisCluster) -> Move:
    return Move(own_redis_cluster, base_name("dlock", "key"))


def wait_for(store: RedisClusterBackend, key: str, ttl: float = 10) -> Wake:
    """Let task b wait for *key*, which task a holds for *ttl* seconds; how b is woken."""
    running(store.enter(claim("a", key=key, ttl=ttl)))
    store.enter(claim("b", key=key, wait=QUEUE), b"message")
    return Wake(key, "b", b"message")


def test_a_key_is_found_where_its_slot_has_moved_and_is_unavailable_meanwhile(
    store: RedisClusterBackend, clock: ManualClock, move: Move
) -> None:
    token = running(store.enter(claim("a"))).token
    store.enter(claim("b", wait=QUEUE), b"message")
    clock.advance(10)

    move.begin()
    names = move.left()
    for half in (names[::2], names[1::2]):
        # Whatever has moved and has not: no operation takes a part for the whole.
        move.bring(*half)
        assert store.sweep().wakes == ()
        for operation in (
            lambda: store.enter(claim("c", "2", wait=QUEUE), b"message"),
            lambda: store.leave(claim("a"), Outcome.OVER),
            lambda: store.reap("key"),
        ):
            with pytest.raises(BackendUnavailable):
                operation()
    move.end()

    assert [holder.token for holder in store.peek("key").holders] == [token]
    assert store.sweep().wakes == (Wake("key", "b", b"message"),)
    assert running(store.enter(claim("b", wait=QUEUE), b"message")).token > token


def test_notes_are_found_where_their_slot_has_moved(store: RedisClusterBackend, move: Move) -> None:
    store.note("key", 5, {"a": b"a"})

    move.begin()
    assert store.note("key", 6, {"b": b"b"})
    move.bring(*move.left())
    with pytest.raises(BackendUnavailable, match="a slot is moving to another master"):
        store.note("key", 4, {})
    assert store.notes("key") == {"a": b"a", "b": b"b"}
    move.end()

    assert store.notes("key") == {"a": b"a", "b": b"b"}
    assert not store.note("key", 5, {})


def test_lists_go_on_and_name_the_keys_of_the_slot_that_is_moved(
    store: RedisClusterBackend, clock: ManualClock, move: Move
) -> None:
    die(store, clock, "dead")
    keys = [*MOVED, ELSEWHERE]
    for key in keys:
        wait_for(store, key)

    move.begin()
    move.bring(*move.left()[::2])
    *moving, elsewhere = look(store, keys)
    assert all("a slot is moving to another master" in str(state) for state in moving)
    assert isinstance(elsewhere, KeyState)
    for waiting in (False, True):
        assert listed_keys(store, waiting=waiting) == sorted(keys)
    assert names(store) == [("key", "dead")]
    assert store.count_dead() == len(store.dead_of(["dead"])) == 1
    assert {key for key, _ in store.parked(["b"])} == {*keys}
    move.end()

    assert all(isinstance(state, KeyState) for state in look(store, keys))


def test_a_lease_is_renewed_until_its_key_moves_and_when_the_slot_has_arrived(
    store: RedisClusterBackend, clock: ManualClock, move: Move
) -> None:
    running(store.enter(claim("a", ttl=10)))

    move.begin()
    clock.advance(5)
    (renewed,) = store.renew([claim("a", ttl=10)])
    move.bring(*move.left())
    with pytest.raises(BackendUnavailable):
        store.renew([claim("a", ttl=10)])
    move.end()

    clock.advance(5)
    (again,) = store.renew([claim("a", ttl=10)])
    assert isinstance(renewed, Renewed)
    assert isinstance(again, Renewed)
    assert again.expires - renewed.expires == 5_000_000


def test_a_sweep_tells_when_the_next_key_elsewhere_is_due_and_says_that_one_has_to_wait(
    store: RedisClusterBackend,
    clock: ManualClock,
    move: Move,
    caplog: pytest.LogCaptureFixture,
) -> None:
    wake = wait_for(store, "key")
    wait_for(store, ELSEWHERE, ttl=13)
    clock.advance(10)

    move.begin()
    for _ in range(2):
        assert store.sweep() == Swept((), 3)
    move.bring(*move.left())
    assert store.sweep() == Swept((), 3)
    assert [record.getMessage() for record in caplog.records] == [
        "not swept, 1 of 64 shards: TryAgainError"
    ]
    move.end()

    assert store.sweep() == Swept((wake,), 3)


def test_a_sweep_wakes_who_is_less_overdue_than_all_that_wait_in_a_slot_that_is_moved(
    store: RedisClusterBackend, clock: ManualClock, move: Move
) -> None:
    stuck = [wait_for(store, key) for key in MOVED]
    wake = wait_for(store, ELSEWHERE, ttl=11)
    clock.advance(12)

    move.begin()
    assert store.sweep(limit=len(stuck)).wakes == (wake,)
    assert store.sweep(limit=len(stuck)) == Swept((), 5)
    move.end()

    assert sorted(store.sweep().wakes, key=str) == sorted(stuck, key=str)
