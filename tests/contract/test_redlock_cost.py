"""What an operation costs on the nodes of a Redlock: flights, and commands at each node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from celery_dlock.core.state import Mode, Outcome, Park, Renewed
from celery_dlock.stores.redlock.quorum import FanOut, Replies
from celery_dlock.testing import ManualClock
from celery_dlock.testing.contract.words import QUEUE, claim, running
from tests.contract.redlock_store import StoreOnNodes, store_on_nodes, warm
from tests.services.redis_nodes import RedisNodes
from tests.services.until import until

pytestmark = pytest.mark.server("redis")


@dataclass
class Count:
    """What an operation took: flights, and scripts at each node; the first has the queue."""

    flights: int
    scripts: list[int]


Counted = Callable[[Callable[[], object]], Count]


@pytest.fixture
def store(own_redis_nodes: RedisNodes) -> Iterator[StoreOnNodes]:
    with store_on_nodes(own_redis_nodes) as store:
        warm(store.backend)
        running(store.backend.enter(claim("warm", key="warm")))
        store.backend.renew([claim("warm", key="warm")])
        yield store


class Flights:
    """How many there were."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number = 0
        fly = FanOut.fly

        def counted(*args: Any) -> Replies:
            self.number += 1
            return fly(*args)

        monkeypatch.setattr(FanOut, "fly", counted)


@pytest.fixture
def flights(monkeypatch: pytest.MonkeyPatch) -> Flights:
    return Flights(monkeypatch)


@pytest.fixture
def count(store: StoreOnNodes, flights: Flights) -> Counted:
    def scripts() -> list[int]:
        stats = [node.info("commandstats") for node in store.nodes]
        return [stat["cmdstat_evalsha"]["calls"] for stat in stats]

    def of(operation: Callable[[], object]) -> Count:
        before, flights.number = settled(scripts), 0
        operation()
        after, flown = settled(scripts), flights.number
        return Count(flown, [late - early for early, late in zip(before, after, strict=True)])

    return of


def settled(scripts: Callable[[], list[int]]) -> list[int]:
    """The counts, when those nodes that nobody waited for have served what they were asked."""
    seen = [scripts()]

    def still() -> bool:
        seen.append(scripts())
        return seen[-1] == seen[-2]

    until("the nodes are idle", still)
    return seen[-1]


@pytest.mark.parametrize("mode", Mode)
def test_a_free_task_takes_three_flights(store: StoreOnNodes, count: Counted, mode: Mode) -> None:
    mine = claim("a", wait=QUEUE, mode=mode)

    # One for the queue's leave to enter, one in which a majority finds the token large enough.
    assert count(lambda: running(store.backend.enter(mine, b"m"))) == Count(2, [2, 1, 1, 1, 1])
    assert count(lambda: store.backend.leave(mine, Outcome.DONE)) == Count(1, [2, 1, 1, 1, 1])


def test_who_has_to_wait_asks_the_queue_alone(store: StoreOnNodes, count: Counted) -> None:
    running(store.backend.enter(claim("a")))

    def contend() -> None:
        assert store.backend.enter(claim("b", wait=QUEUE), b"message").verdict == Park()

    assert count(contend) == Count(1, [1, 0, 0, 0, 0])


def test_a_hundred_leases_are_renewed_in_one_flight(store: StoreOnNodes, count: Counted) -> None:
    mine = [claim("a", key=f"key {n}", ttl=3600) for n in range(100)]
    for one in mine:
        running(store.backend.enter(one))
    keys = [one.key for one in mine]
    store.backend.look(keys)

    def renew() -> None:
        assert all(isinstance(verdict, Renewed) for verdict in store.backend.renew(mine))

    def look() -> None:  # one more to the queue
        assert all(state.holders for state in store.backend.look(keys))

    for operation in (renew, look):
        assert count(operation) == Count(1, [2, 1, 1, 1, 1])


def test_what_keys_leave_on_the_nodes_is_gone_after_minutes(store: StoreOnNodes) -> None:
    mine = claim("a", ttl=30)
    running(store.backend.enter(mine))
    store.backend.leave(mine, Outcome.OVER)

    for node in store.nodes:
        with node.client() as client:
            (name,) = client.scan_iter("*{key}:lock")
            assert 0 < client.pttl(name) <= 180_000
            assert (client.memory_usage(name) or 0) < 400


def test_a_token_that_was_too_small_takes_two_flights_more_and_the_queue_is_told(
    own_redis_nodes: RedisNodes, flights: Flights
) -> None:
    clock = ManualClock()
    with store_on_nodes(own_redis_nodes, clock) as store:
        running(store.backend.enter(claim("a")))
        store.backend.leave(claim("a"), Outcome.OVER)
        with store.nodes[0].client() as client:
            client.delete(*client.scan_iter("*{key}:token"))
        clock.advance(-1)
        flights.number = 0

        running(store.backend.enter(claim("b")))

    assert flights.number == 5
