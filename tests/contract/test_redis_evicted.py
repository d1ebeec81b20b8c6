"""A Redis that evicts (``allkeys-…``) throws a part of a key away: what is left of it goes on."""

from __future__ import annotations

import pytest

from celery_dlock.core.state import WINDOW, Outcome, Run
from celery_dlock.stores.base import LockBackend
from celery_dlock.testing import ManualClock
from celery_dlock.testing.contract.words import QUEUE, claim, park, running
from tests.contract.redis_store import StoreOnRedis, store_on
from tests.services.redis import RedisServer

pytestmark = pytest.mark.server("redis")


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
def test_however_long_a_queue_is_whose_key_was_evicted_all_of_it_runs(
    redis_server: RedisServer, newcomers: list[str]
) -> None:
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
