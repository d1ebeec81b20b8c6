"""What lies in Redis, for how long, and that nothing piles up there."""

from __future__ import annotations

import time

import pytest

from celery_dlock.core.operations import Replay
from celery_dlock.core.state import WINDOW, Busy, Mode, Outcome
from celery_dlock.stores.base import BackendOptions, Swept
from celery_dlock.stores.redis.store import RedisBackend
from celery_dlock.testing import ManualClock
from celery_dlock.testing.contract.words import DAY, PLACE, QUEUE, claim, running, woken
from tests.contract.redis_store import StoreOnRedis, store_on
from tests.contract.storage.dead_letters import die
from tests.services.redis import RedisServer

pytestmark = pytest.mark.server("redis")

HOUR = 3_600_000
WEEK = 7 * 24 * HOUR


def test_an_idle_key_leaves_a_token_and_done_tasks(redis_server: RedisServer) -> None:
    with store_on(redis_server) as store:
        for task in ("a", "b"):
            store.backend.enter(claim(task, wait=QUEUE), b"message")
        store.backend.leave(claim("a"), Outcome.DONE)
        running(store.backend.enter(claim("b")))
        store.backend.leave(claim("b"), Outcome.OVER)

        lying = store.lying()
        token, done = store.names("key", "a")[4:]
        assert lying.keys() == {token, done}
        assert WEEK - HOUR < lying[token] <= WEEK
        assert 0 < lying[done] <= HOUR
    with store_on(redis_server) as store:
        running(store.backend.enter(claim("reader", mode=Mode.SHARED)))
        store.backend.leave(claim("reader"), Outcome.OVER)
        assert store.lying() == {}


def test_what_nobody_comes_back_for_ends_a_day_later(redis_server: RedisServer) -> None:
    with store_on(redis_server) as store:
        running(store.backend.enter(claim("holder", ttl=10)))
        store.backend.enter(claim("a", wait=PLACE, patience=3600))
        store.backend.enter(claim("b", wait=PLACE, patience=60))

        lying = store.lying()
        for name in store.names("key")[:3]:
            assert 24 * HOUR < lying[name] <= 25 * HOUR
        store.backend.renew([claim("holder", ttl=7200)])
        assert store.lying()[store.names("key")[0]] > 25 * HOUR


def test_a_parked_message_has_no_end(redis_server: RedisServer) -> None:
    with store_on(redis_server) as store:
        running(store.backend.enter(claim("holder")))
        store.backend.enter(claim("place", wait=PLACE))
        store.backend.enter(claim("a", wait=QUEUE), b"message")
        state, queue, entries, *_ = store.names("key")

        assert {store.lying()[name] for name in (state, queue, entries)} == {-1}
        # Nor has one whose turn is woken and who does not come
        store.backend.leave(claim("holder"), Outcome.DONE)
        running(store.backend.enter(claim("place")))
        assert woken(store.backend.leave(claim("place"), Outcome.DONE)) == ["a"]
        assert {store.lying()[name] for name in (state, entries)} == {-1}


def test_a_kept_message_has_no_end_and_leaves_nothing(redis_server: RedisServer) -> None:
    with store_on(redis_server) as store:
        mine = claim("a", wait=QUEUE, keep=True, mode=Mode.SHARED)
        running(store.backend.enter(mine, b"message"))
        assert {store.lying()[name] for name in store.names("key")[:3]} == {-1}
        store.backend.leave(mine, Outcome.OVER)
        assert store.lying() == {}


def test_a_reserved_key_ends_a_day_after_the_reservation(redis_server: RedisServer) -> None:
    with store_on(redis_server) as store:
        running(store.backend.enter(claim("a", mode=Mode.SHARED)))
        store.backend.leave(
            claim("a", mode=Mode.SHARED, patience=3600, successor="b"), Outcome.OVER
        )
        state = store.names("key")[0]
        lying = store.lying()
        assert lying.keys() == {state}
        assert 24 * HOUR < lying[state] <= 25 * HOUR


def test_a_dead_message_has_no_end(redis_server: RedisServer) -> None:
    clock = ManualClock()
    with store_on(redis_server, clock) as store:
        die(store.backend, clock, "a")
        store.client.delete(store.names("key")[4], *store.names("key", "holder")[5:])

        assert {name.rpartition(":")[2] for name in store.lying()} == {"dead", "died", "tasks"}
        assert set(store.lying().values()) == {-1}
        store.backend.apply(Replay("key", "a"))
        store.backend.leave(claim("a", done_ttl=0), Outcome.DONE)
        assert store.lying() == {}


def test_counts_of_lost_runs_do_not_pile_up(redis_server: RedisServer) -> None:
    clock = ManualClock()
    with store_on(redis_server, clock) as store:
        for day in range(40):
            for number in range(5):
                running(store.backend.enter(claim(f"{day}-{number}", ttl=10)))
                clock.advance(10)
            clock.advance(DAY)
        lost = store.names("key")[3]
        assert store.client.hlen(lost) < 50
        assert 0 < store.lying()[lost] <= 24 * HOUR


def test_a_crowd_of_expired_places_is_cleared_bit_by_bit(redis_server: RedisServer) -> None:
    clock = ManualClock()
    with store_on(redis_server, clock) as store:
        running(store.backend.enter(claim("holder", ttl=1000)))
        for number in range(40 * WINDOW):
            store.backend.enter(claim(f"place {number}", wait=PLACE, patience=60))
        store.backend.enter(claim("a", wait=QUEUE), b"message")
        clock.advance(100)

        store.backend.reap("key")
        assert _waiting(store) == 8 * WINDOW + 1
        store.backend.reap("key")
        assert _waiting(store) == 1
        assert woken(store.backend.leave(claim("holder"), Outcome.DONE)) == ["a"]


def test_a_key_that_cannot_be_read_does_not_keep_others_from_being_swept(
    redis_server: RedisServer,
) -> None:
    clock = ManualClock()
    with store_on(redis_server, clock) as store:
        for key in ("spoilt", "sound"):
            running(store.backend.enter(claim("a", key=key)))
            store.backend.enter(claim("b", key=key, wait=QUEUE), b"message")
        store.client.set(store.names("spoilt")[0], b"nonsense")
        clock.advance(10)

        assert sorted(store.backend.parked(["b"])) == [("sound", "b"), ("spoilt", "b")]
        assert [wake.key for wake in store.backend.sweep().wakes] == ["sound"]
        # And it is looked at again
        assert store.backend.sweep().next_in == 5
        clock.advance(600)
        running(store.backend.enter(claim("b", key="sound")))
        assert store.backend.sweep() == Swept((), 600)


def test_a_key_that_was_deleted_leaves_the_index(redis_server: RedisServer) -> None:
    clock = ManualClock()
    with store_on(redis_server, clock) as store:
        running(store.backend.enter(claim("a")))
        store.backend.enter(claim("b", wait=QUEUE), b"message")
        store.client.delete(*store.names("key"))
        clock.advance(10)

        assert store.backend.sweep() == Swept((), None)


def test_tokens_are_the_servers_microseconds_to_the_last_digit(redis_server: RedisServer) -> None:
    with store_on(redis_server) as store:
        before = _server_time(store)
        token = running(store.backend.enter(claim("a"))).token
        assert before <= token <= _server_time(store)
        assert running(store.backend.enter(claim("a"))).token == token
        assert int(store.client.get(store.names("key")[4]) or 0) == token


def test_tokens_grow_by_one_while_the_clock_stands_or_steps_back(redis_server: RedisServer) -> None:
    clock = ManualClock(9_007_199_254_740_000)  # a little below what a double can count
    with store_on(redis_server, clock) as store:
        for number in range(50):
            run = running(store.backend.enter(claim("a", str(number), done_ttl=0)))
            assert run.token == 9_007_199_254_740_000 + number
            store.backend.leave(claim("a", str(number), done_ttl=0), Outcome.OVER)
            if number == 20:
                clock.advance(-3600)


def test_a_unix_socket_serves_as_well(redis_server: RedisServer) -> None:
    url = f"redis+unix://{redis_server.socket_path}?db=3"
    store = RedisBackend.from_url(url, BackendOptions(prefix=f"unix-{time.time_ns()}"))
    running(store.enter(claim("a")))
    assert isinstance(store.enter(claim("b")).verdict, Busy)
    store.close()
    assert isinstance(store.enter(claim("b")).verdict, Busy)  # opened again
    store.close()


def _waiting(store: StoreOnRedis) -> int:
    return int(store.client.zcard(store.names("key")[1]))


def _server_time(store: StoreOnRedis) -> int:
    seconds, microseconds = store.client.time()
    return int(seconds) * 1_000_000 + int(microseconds)
