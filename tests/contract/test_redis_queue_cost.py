"""What a script asks of Redis while many wait: a bounded part of the queue, and one message."""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from celery_dlock.core.machine import MAX_LOST_RUNS
from celery_dlock.core.state import WINDOW, Outcome
from celery_dlock.stores.redis import wire
from celery_dlock.testing import ManualClock
from celery_dlock.testing.contract.words import PLACE, QUEUE, claim, running, woken
from tests.contract.redis_store import StoreOnRedis, store_on
from tests.services.redis import RedisServer

pytestmark = pytest.mark.server("redis")

MESSAGE = b"x" * 1000

#: One element each, or none: these cost the logarithm of the queue's length at most.
SINGLE = {"GET", "SET", "DEL", "EXISTS", "PEXPIRE", "PERSIST", "TIME"}
SINGLE |= {"HGET", "HSET", "HSETNX", "HDEL", "HEXISTS", "ZADD", "ZREM", "ZRANK", "ZSCORE"}


@pytest.fixture
def store(redis_server: RedisServer) -> Iterator[StoreOnRedis]:
    with store_on(redis_server, ManualClock()) as store:
        for operation in operations(store, waiting=2).values():
            operation()  # every script is loaded
        yield store


def operations(store: StoreOnRedis, waiting: int) -> dict[str, Callable[[], object]]:
    """What can be done, in this order, on a key for which so many wait."""
    backend, key = store.backend, f"key-{waiting}"
    first, second = (claim(f"w{number}", key=key, wait=QUEUE) for number in (0, 1))
    holder, last = claim("holder", key=key), claim(f"w{waiting - 1}", "2", key=key, wait=QUEUE)
    running(backend.enter(holder))
    for number in range(waiting):
        backend.enter(claim(f"w{number}", key=key, wait=QUEUE), MESSAGE)
    return {
        "newcomer": lambda: backend.enter(claim("new", key=key, wait=QUEUE), MESSAGE),
        "newcomer with a place": lambda: backend.enter(claim("place", key=key, wait=PLACE)),
        "copy of the last": lambda: backend.enter(last, MESSAGE),
        "renewal": lambda: backend.renew([holder]),
        "lost run": lambda: backend.leave(claim("a", key=key), Outcome.ABANDONED),
        "release": lambda: woken(backend.leave(holder, Outcome.DONE)),
        "turn": lambda: running(backend.enter(first, MESSAGE)),
        "release of a turn": lambda: woken(backend.leave(first, Outcome.DONE)),
        "turn of the second": lambda: running(backend.enter(second, MESSAGE)),
        "reaping": lambda: backend.reap(key),
        "sweep": backend.sweep,
        "look": lambda: backend.look([key]),
        "first of the queue": lambda: backend.peek(key, 5),
        "where the last stands": lambda: backend.position(key, f"w{waiting - 1}"),
        "list of who waits": lambda: backend.keys(waiting=True),
    }


def test_no_script_reads_the_whole_of_a_queue(store: StoreOnRedis) -> None:
    for name, operation in operations(store, waiting=2 * WINDOW).items():
        for command in inside(store, operation):
            assert at_most(command) <= WINDOW, (name, command)


#: What is read and what is written; a command that is added here keeps everybody waiting.
INSIDE = {
    "newcomer": "exists get exists hexists hexists zrange hset hsetnx zadd set",
    "release": "get exists hexists zrange hdel zrem exists zadd set set hget",
    "turn": "exists get exists hexists get set hdel hget hdel zadd set",
}


def test_what_a_script_asks_of_redis_while_others_wait(store: StoreOnRedis) -> None:
    done = operations(store, waiting=3 * WINDOW)
    for name, commands in INSIDE.items():
        with store.counted() as cost:
            done[name]()
        assert cost.commands == Counter(["evalsha", *commands.split()]), name


def test_an_operation_costs_the_same_with_five_and_with_hundreds(store: StoreOnRedis) -> None:
    few, many = (
        {name: cost_of(store, run) for name, run in operations(store, waiting).items()}
        for waiting in (WINDOW + 10, 10 * WINDOW)
    )

    for name, (commands, sent) in many.items():
        assert (name, commands) == (name, few[name][0])
        assert sent == pytest.approx(few[name][1], abs=len(MESSAGE) / 4), name


def cost_of(store: StoreOnRedis, operation: Callable[[], object]) -> tuple[Counter[str], int]:
    """The commands within *operation*, and the bytes of the answer."""
    before = store.client.info("stats")["total_net_output_bytes"]
    with store.counted() as cost:
        operation()
    return cost.commands, int(store.client.info("stats")["total_net_output_bytes"] - before)


def test_a_list_of_the_dead_is_sent_no_more_bodies_than_it_shows(store: StoreOnRedis) -> None:
    clock = store.options.clock
    assert isinstance(clock, ManualClock)
    for number in range(40):
        lost = claim(f"d{number}", key=f"order:{number}", wait=QUEUE)
        for _ in range(MAX_LOST_RUNS):
            running(store.backend.enter(lost))
            store.backend.leave(lost, Outcome.ABANDONED)
        store.backend.enter(lost, 10 * MESSAGE)
        clock.advance(1)
    store.backend.dead(2)  # the script is loaded

    sent = bytes_sent(store, lambda: store.backend.dead(2))

    assert sent < 2 * 10 * len(MESSAGE) + bytes_sent(store, lambda: None) + 5000
    assert [letter.dead.task for letter in store.backend.dead(2)] == ["d0", "d1"]
    assert len(store.backend.dead(100)) == 40


def test_a_sweep_reads_little_more_than_it_reaps(store: StoreOnRedis) -> None:
    clock = store.options.clock
    assert isinstance(clock, ManualClock)
    due = wire.indexes(store.prefix)
    for hot in (False, True):  # all of one shard, or of all alike
        for number in range(1000):
            index = due[7 if hot else number % len(due)]
            store.client.zadd(index, {f"{{{hot} {number}}}": number + 1})

        read = sum(rows_read(c) for c in inside(store, lambda: store.backend.sweep(100)))

        left = [at for index in due for at in store.client.zrangebyscore(index, 1, 1000)]
        assert len(left) == 900
        assert b"{%b 100}" % str(hot).encode() in left
        assert read <= 4 * 100 + 2 * len(due)
        store.client.unlink(*due)


def rows_read(command: list[str]) -> int:
    """How many rows of an index of due keys *command* may read."""
    return int(command[-1]) if command[0] == "ZRANGEBYSCORE" else 0


def inside(store: StoreOnRedis, operation: Callable[[], object]) -> list[list[str]]:
    """The commands that the script of *operation* calls."""
    found: list[list[str]] = []
    with store.client.monitor() as monitor:
        operation()
        store.client.echo("the end")
        for said in monitor.listen():
            if said["command"].startswith("ECHO"):
                break
            if said["client_type"] == "lua":
                found.append(said["command"].split(" "))
    return found


def at_most(command: list[str]) -> float:
    """How many elements *command* may read or write."""
    match command:
        case ["ZRANGE", _, "-1", "-1", *_]:
            return 1
        case ["ZRANGE", _, first, last, *_] if int(last) >= 0:
            return int(last) - int(first) + 1
        case ["ZRANGEBYSCORE", *_, "LIMIT", "0", count]:
            return int(count) if "due" not in command[1] else 1  # keys, of which each is reaped
        case ["HRANDFIELD", _, count, *_]:
            return int(count)
        case [name, *_] if name in SINGLE:
            return 1
    return float("inf")


def bytes_sent(store: StoreOnRedis, operation: Callable[[], object]) -> int:
    """What the server answers to *operation*, and to one look at its figures."""
    before = store.client.info("stats")["total_net_output_bytes"]
    operation()
    return int(store.client.info("stats")["total_net_output_bytes"] - before)
