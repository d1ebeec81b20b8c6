"""Nodes that forget: one that came back does not vote before it cannot do harm by it.

Where all of them forget exclusion breaks, and the fence in the resource refuses the late write.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from celery_dlock.core.state import Busy, Outcome
from celery_dlock.errors import BackendUnavailable, StaleFencingToken
from celery_dlock.fencing import admit, create_table
from celery_dlock.testing import ManualClock
from celery_dlock.testing.contract.words import DAY, SHARED, claim, running
from tests.contract.redlock_store import (
    HARMS,
    Harm,
    StoreOnNodes,
    clock,
    eventually,
    gets_it,
    store_on_nodes,
    warm,
)
from tests.services.redis_nodes import RedisNodes, running_nodes
from tests.services.until import until

__all__ = ("clock",)  # a fixture

pytestmark = pytest.mark.server("redis")

Forget = Callable[[StoreOnNodes, int], None]


def flush(store: StoreOnNodes, node: int) -> None:
    store.forget(node)


def restart(store: StoreOnNodes, node: int) -> None:
    store.nodes[node].restart()


def forget_and_be_raised(store: StoreOnNodes, node: int) -> None:
    """Whoever takes a lock notices it, at the latest with the next one."""
    store.forget(node)

    def raised() -> bool:
        eventually(store.backend, claim("a", uuid.uuid4().hex, key=uuid.uuid4().hex))
        return store.look(node).raised

    until("the node is raised", raised)


@pytest.fixture
def store(clock: ManualClock) -> Iterator[StoreOnNodes]:
    with running_nodes(3) as nodes, store_on_nodes(nodes, clock) as store:
        warm(store.backend)
        yield store


@pytest.fixture
def known_to_two(store: StoreOnNodes) -> StoreOnNodes:
    """Task a holds the key on the queue's node and on one other, which is a majority."""
    store.nodes[2].pause()
    running(store.backend.enter(claim("a")))
    store.nodes[2].resume()
    with store.nodes[2].client() as client:  # what it was asked meanwhile it has done by now
        for name in client.scan_iter("*{key}:lock"):
            client.delete(name)
    return store


@pytest.mark.parametrize("forget", [flush, restart])
def test_a_node_that_came_back_empty_does_not_vote_until_what_it_forgot_is_over(
    known_to_two: StoreOnNodes, clock: ManualClock, forget: Forget
) -> None:
    store = known_to_two
    forget(store, 0)

    for _ in range(3):
        verdict = store.another().enter(claim("b")).verdict
        assert isinstance(verdict, Busy)  # one knows of a, and one may have forgotten it
        assert verdict.holder is not None
        assert verdict.holder.task == "a"
        assert (store.look(0).raised, store.look(0).votes) == (True, False)
        clock.advance(3)
    clock.advance(1.2)

    assert store.look(0).votes
    gets_it(store.backend, claim("b"))


def test_a_node_that_forgot_waits_for_a_lease(store: StoreOnNodes, clock: ManualClock) -> None:
    running(store.backend.enter(claim("long", key="long", ttl=60)))
    clock.advance(5)
    forget_and_be_raised(store, 1)
    clock.advance(60)
    assert not store.look(1).votes  # what clocks may differ by is added
    clock.advance(1)
    assert store.look(1).votes

    forget_and_be_raised(store, 2)  # the long one is over
    clock.advance(10.2)
    assert store.look(2).votes


def test_a_node_is_not_raised_by_what_it_was_before(store: StoreOnNodes) -> None:
    store.forget(1)
    late = store.backend._calls.raised(store.look(1), 0, 0, 0)
    store.forget(1)

    with store.backend._quorum() as quorum:
        assert quorum.tell({1: [late]}) == {1: [-1]}

    assert not store.look(1).raised


def test_a_server_that_came_back_with_older_data_does_not_vote(clock: ManualClock) -> None:
    with running_nodes(3, "--save", "3600 1") as nodes, store_on_nodes(nodes, clock) as store:
        warm(store.backend)
        with nodes[0].client() as client:
            client.save()
        nodes[2].pause()
        running(store.backend.enter(claim("a")))
        nodes[2].kill()  # it never heard of a
        nodes[2].start()

        nodes[0].restart()  # it has heard, and its copy on disk has not

        assert store.holders(0) == []
        with pytest.raises(BackendUnavailable):
            store.another().enter(claim("b"))
        assert not store.look(0).votes


def test_a_new_store_starts_when_all_nodes_are_there(clock: ManualClock) -> None:
    with running_nodes(3) as nodes, store_on_nodes(nodes, clock) as store:
        nodes[2].kill()
        with pytest.raises(BackendUnavailable, match="majority"):
            store.backend.enter(claim("a"))
        nodes[2].start()

        gets_it(store.backend, claim("a"))


def test_when_a_majority_forgets_a_lease_is_waited(store: StoreOnNodes, clock: ManualClock) -> None:
    first = running(store.backend.enter(claim("a")))
    for node in (0, 1):
        restart(store, node)

    with pytest.raises(BackendUnavailable):
        store.another().enter(claim("b"))
    clock.advance(10.2)

    assert gets_it(store.backend, claim("b")).token > first.token


def test_when_all_forget_the_fence_still_refuses(store: StoreOnNodes, clock: ManualClock) -> None:
    a, b = claim("a"), claim("b")
    late = running(store.backend.enter(a))
    for node in range(3):
        restart(store, node)
    clock.advance(0.001)

    newer = gets_it(store.another(), b)  # and a has nine seconds left

    assert newer.token > late.token
    with closing(sqlite3.connect(":memory:")) as database:
        create_table(database)
        admit(database, resource="key", fencing_token=newer.token, owner=b.owner)
        with pytest.raises(StaleFencingToken):
            admit(database, resource="key", fencing_token=late.token, owner=a.owner)
    database.close()


@HARMS
def test_tokens_grow_over_a_minority_that_forgets_and_a_queue_that_proposes_too_small_ones(
    own_redis_nodes: RedisNodes, clock: ManualClock, harm: Harm
) -> None:
    tokens: list[int] = []
    with store_on_nodes(own_redis_nodes, clock) as store:

        def take() -> None:
            tokens.append(gets_it(store.backend, claim("a")).token)
            store.backend.leave(claim("a"), Outcome.OVER)

        take()
        harm(store.nodes[4])
        for number in range(8):
            forget_and_be_raised(store, number % 4)
            clock.advance(20)
            take()
            with store.nodes[0].client() as client:
                client.delete(*client.scan_iter("*{key}:token"))
            clock.advance(-5)
            take()

    assert len(tokens) == 17
    assert tokens == sorted(set(tokens))


def test_a_token_grows_when_every_node_has_forgotten_in_turn_and_the_clocks_are_behind_it(
    own_redis_nodes: RedisNodes, clock: ManualClock
) -> None:
    with store_on_nodes(own_redis_nodes, clock) as store:
        warm(store.backend)
        clock.advance(DAY)
        before = running(store.backend.enter(claim("a"))).token
        store.backend.leave(claim("a"), Outcome.OVER)
        clock.advance(-DAY)

        for node in range(5):  # the queue among them, which then proposes the time
            forget_and_be_raised(store, node)
            clock.advance(20)

        assert gets_it(store.backend, claim("b")).token > before


def test_a_forgotten_reader_keeps_a_writer(known_to_two: StoreOnNodes, clock: ManualClock) -> None:
    store = known_to_two
    gets_it(store.backend, claim("r", key="other", mode=SHARED))
    store.forget(0)

    verdict = eventually(store.backend, claim("w", key="other")).verdict

    assert isinstance(verdict, Busy)
