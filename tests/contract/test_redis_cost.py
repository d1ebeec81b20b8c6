"""What an operation costs on Redis: round trips, commands inside a script, memory."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from celery_dlock.core.operations import Replay
from celery_dlock.core.state import Cause, Outcome, Park, Renewed
from celery_dlock.stores.redis import wire as redis_wire
from celery_dlock.testing import ManualClock
from celery_dlock.testing.contract.words import QUEUE, claim, running, woken
from tests.contract.redis_store import StoreOnRedis, store_on
from tests.services.redis import RedisServer
from tests.services.unique import duplicate_call

pytestmark = pytest.mark.server("redis")


def test_an_uncontended_task_takes_two_round_trips(redis_server: RedisServer) -> None:
    with store_on(redis_server) as store:
        _warm(store)
        mine = claim("a", wait=QUEUE)

        with store.counted() as cost:
            running(store.backend.enter(mine, b"message"))
            store.backend.leave(mine, Outcome.DONE)

        assert cost.requests == 2
        # Inside: what is read, what is written. A command that is added here is added to each task.
        assert cost.commands == Counter(
            evalsha=2, time=2, get=2, set=3, exists=2, hexists=1, hdel=1, **{"del": 1}
        )


def test_a_contended_task_takes_three_round_trips(redis_server: RedisServer) -> None:
    with store_on(redis_server) as store:
        _warm(store)
        first, mine = claim("a"), claim("b", wait=QUEUE)
        running(store.backend.enter(first))

        with store.counted() as cost:
            assert store.backend.enter(mine, b"message").verdict == Park()
        assert (cost.requests, cost.commands["evalsha"]) == (1, 1)
        store.backend.leave(first, Outcome.DONE)
        with store.counted() as cost:
            running(store.backend.enter(mine, b"message"))
            store.backend.leave(mine, Outcome.DONE)
        assert (cost.requests, cost.commands["evalsha"]) == (2, 2)


def test_a_duplicate_call_of_a_unique_task_reads_in_one_round_trip(
    redis_server: RedisServer,
) -> None:
    with store_on(redis_server) as store:
        _warm(store)
        call = duplicate_call(store.backend)
        for _ in range(2):
            with store.counted() as cost:
                call()
            assert (cost.requests, cost.commands) == (1, Counter(evalsha=1, time=1, get=1))


def test_all_leases_of_a_worker_are_renewed_in_one_round_trip(redis_server: RedisServer) -> None:
    with store_on(redis_server) as store:
        _warm(store)
        mine = [claim("a", key=f"key {n}") for n in range(100)]
        for one in mine:
            running(store.backend.enter(one))

        with store.counted() as cost:
            assert all(isinstance(v, Renewed) for v in store.backend.renew(mine))

        assert cost.commands == Counter(evalsha=1, time=1, get=100, set=100)


def test_a_sweep_takes_one_round_trip_whatever_is_due(redis_server: RedisServer) -> None:
    clock = ManualClock()
    with store_on(redis_server, clock) as store:
        _warm(store)
        for number in range(100):
            running(store.backend.enter(claim("a", key=f"key {number}")))
            store.backend.enter(claim("b", key=f"key {number}", wait=QUEUE), b"message")
        clock.advance(10)

        with store.counted() as cost:
            assert len(store.backend.sweep().wakes) == 100

        assert (cost.requests, cost.commands["evalsha"]) == (1, 1)


def test_a_note_takes_one_trip_and_reading_all_another(redis_server: RedisServer) -> None:
    with store_on(redis_server) as store:
        store.backend.note("key", 5, {})  # loads the script
        store.backend.notes("key")  # opens a connection

        with store.counted() as cost:
            assert store.backend.note("key", 6, {"a": b"a", "b": b"b", "c": None})
        assert (cost.requests, cost.commands) == (1, Counter(evalsha=1, hget=1, hset=3, hdel=1))
        with store.counted() as cost:
            assert store.backend.notes("key") == {"a": b"a", "b": b"b"}
        assert (cost.requests, cost.commands) == (1, Counter(hgetall=1))
        assert list(store.lying().values()) == [-1]


def test_a_revoked_task_is_found_whatever_waits(redis_server: RedisServer) -> None:
    with store_on(redis_server) as store:
        keys = len(store.backend.parked(["b"]))  # it has connected
        for waiting in (10, 1000):
            for number in range(keys, waiting):
                running(store.backend.enter(claim("a", key=f"key {number}")))
                mine = claim(f"b{number}:0:0", key=f"key {number}", wait=QUEUE)
                store.backend.enter(mine, b"message")
            keys = waiting

            with store.counted() as cost:
                found = store.backend.parked(["b7", *(f"revoked {n}" for n in range(100))])

            assert found == [("key 7", "b7:0:0")]
            assert cost.commands == Counter(hmget=redis_wire.SHARDS)


def test_a_look_costs_the_same_with_ten_thousand_dead(redis_server: RedisServer) -> None:
    with store_on(redis_server, ManualClock()) as store:
        dead, died, tasks = redis_wire.touched(store.prefix, "key")[7:]
        costs = []
        for count in (10, 10, 10_000):  # after the first the server has all scripts
            names: list[Any] = [f"{{key}}t{n}:0:0" for n in range(count)]
            store.client.hset(dead, mapping=dict.fromkeys(names, "x,unreadable,1;message"))
            store.client.zadd(died, dict.fromkeys(names, 1))
            store.client.hset(tasks, mapping={f"t{n}": "d4:0:0{key}" for n in range(count)})
            costs.append(_cost_of_upkeep(store))

        assert costs[2] == costs[1]
        assert store.backend.count_dead() == 10_000
        assert len(store.backend.dead(limit=20_000)) == 10_000
        (letter,) = store.backend.dead_of(["t77"])
        assert (letter.key, letter.dead.task, letter.message) == ("key", "t77:0:0", b"message")
        store.client.unlink(dead, died, tasks)


def _cost_of_upkeep(store: StoreOnRedis) -> list[Counter[str]]:
    """What people do, and what is done beside the dead; it ends as it began."""
    backend, mine = store.backend, claim("a", wait=QUEUE, keep=True)
    operations: list[Callable[[], object]] = [
        lambda: running(backend.enter(mine, b"message")),
        lambda: backend.enter(claim("b", wait=QUEUE), b"message"),
        lambda: woken(backend.leave(mine, Outcome.OVER)),
        *[lambda: backend.dead_letter("key", "b", Cause.UNREADABLE)] * 2,
        lambda: backend.parked(["b"]),
        lambda: backend.cancel("key", "b"),
        lambda: backend.dead(1),
        lambda: backend.dead_of(["b", "t7"]),
        backend.count_dead,
        lambda: backend.apply(Replay("key", "b")),
        backend.sweep,
        lambda: backend.leave(claim("b"), Outcome.OVER),
    ]
    costs = []
    for operation in operations:
        with store.counted() as cost:
            operation()
        costs.append(cost.commands)
    return costs


def test_a_waiting_task_takes_its_message_and_600_bytes(redis_server: RedisServer) -> None:
    for size in (1000, 1024):
        with store_on(redis_server) as store:
            running(store.backend.enter(claim("holder")))
            for _ in range(1000):
                mine = claim(f"{uuid.uuid4()}:0:0", wait=QUEUE)
                assert store.backend.enter(mine, b"x" * size).verdict == Park()

            index = redis_wire.of_shards(store.prefix, "tasks")[redis_wire.shard_of("key")]
            names = [*store.names("key"), index]
            used = sum(store.client.memory_usage(name, 0) or 0 for name in names)

            assert used / 1000 <= size + 600


def _warm(store: StoreOnRedis) -> None:
    """Load every script, and open the connection."""
    running(store.backend.enter(claim("warm", key="warm")))
    store.backend.renew([claim("warm", key="warm")])
    store.backend.leave(claim("warm", key="warm"), Outcome.OVER)
    store.backend.reap("warm")
    store.backend.sweep()
    store.backend.cancel("warm", "warm")
    store.backend.look(["warm"])
    store.backend.peek("warm", 5)
    store.backend.position("warm", "warm")
    store.client.ping()
