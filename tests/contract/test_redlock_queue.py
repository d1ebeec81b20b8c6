"""The queue's node is away, or has forgotten: contention is rescheduled, and no message is lost."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_dlock.core.state import Busy, Left, Mode, Outcome, Park, Run, Same, WaitMode
from celery_dlock.errors import BackendUnavailable
from celery_dlock.testing import ManualClock
from celery_dlock.testing.contract.words import (
    ENQUEUE,
    PLACE,
    QUEUE,
    SECOND,
    claim,
    park,
    running,
    woken,
)
from tests.contract.redlock_store import (
    Harm,
    StoreOnNodes,
    eventually,
    leaves,
    store_on_nodes,
    warm,
)
from tests.services.redis import RedisServer
from tests.services.redis_nodes import RedisNodes
from tests.services.until import until

pytestmark = pytest.mark.server("redis")

HARMS = pytest.mark.parametrize("harm", [RedisServer.kill, RedisServer.pause])


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(own_redis_nodes: RedisNodes, clock: ManualClock) -> Iterator[StoreOnNodes]:
    with store_on_nodes(own_redis_nodes, clock) as store:
        warm(store.backend)
        yield store


# Away.


@HARMS
@pytest.mark.parametrize("wait", [WaitMode.NOT, WaitMode.PLACE, WaitMode.LOOK, WaitMode.QUEUE])
def test_contention_is_rescheduled_while_the_queue_is_away(
    store: StoreOnNodes, harm: Harm, wait: WaitMode
) -> None:
    harm(store.nodes[0])

    token = running(store.backend.enter(claim("a", wait=wait), b"message")).token
    verdict = store.backend.enter(claim("b", wait=wait), b"message").verdict

    assert isinstance(verdict, Busy)
    assert verdict.holder is not None
    assert (verdict.holder.task, verdict.holder.token) == ("a", token)
    assert 9 * SECOND < verdict.left <= 10 * SECOND
    assert not verdict.full


@HARMS
def test_a_key_is_free_for_the_next_although_the_queue_does_not_hear_of_it(
    store: StoreOnNodes, harm: Harm
) -> None:
    harm(store.nodes[0])
    first = running(store.backend.enter(claim("a")))

    # Said again by whoever left, until the queue knows what is done.
    with pytest.raises(BackendUnavailable, match="queue"):
        store.backend.leave(claim("a"), Outcome.DONE)

    assert running(store.another().enter(claim("b"))).token > first.token


def test_another_delivery_of_a_running_task_never_writes_a_result_while_the_queue_is_away(
    store: StoreOnNodes,
) -> None:
    store.nodes[0].kill()
    running(store.backend.enter(claim("a", "first")))

    verdict = store.backend.enter(claim("a", "second", wait=QUEUE), b"message").verdict

    assert isinstance(verdict, Same)
    assert verdict.holder.nonce == "first"


def test_readers_and_slots_go_on_while_the_queue_is_away(store: StoreOnNodes) -> None:
    store.nodes[0].kill()

    for task in "rst":
        running(store.backend.enter(claim(task, key="read", mode=Mode.SHARED)))
    assert isinstance(store.backend.enter(claim("w", key="read")).verdict, Busy)
    slots = [running(store.backend.enter(claim(task, key="three", limit=3))) for task in "abc"]
    assert isinstance(store.backend.enter(claim("d", key="three", limit=3)).verdict, Busy)

    assert sorted(run.slot for run in slots) == [0, 1, 2]
    assert len({run.token for run in slots}) == 3


def test_who_publishes_in_order_is_told_that_the_queue_is_away(store: StoreOnNodes) -> None:
    store.nodes[0].kill()

    with pytest.raises(BackendUnavailable):
        store.backend.enter(claim("a", "p", wait=ENQUEUE), b"message")


@HARMS
def test_who_notes_something_is_told_that_the_queue_is_away(
    store: StoreOnNodes, harm: Harm
) -> None:
    assert store.backend.note("key", 5, {"a": b"a"})
    harm(store.nodes[0])

    with pytest.raises(BackendUnavailable):
        store.backend.note("key", 5, {"a": b"b"})
    with pytest.raises(BackendUnavailable):
        store.backend.notes("key")


def test_the_queue_waits_for_who_started_while_it_was_away(
    store: StoreOnNodes, clock: ManualClock
) -> None:
    store.nodes[0].kill()
    running(store.backend.enter(claim("a", ttl=60)))
    store.nodes[0].start()

    def parked() -> bool:
        return eventually(store.backend, claim("b", wait=QUEUE), b"b").verdict == Park()

    until("b waits in the queue", parked)
    assert store.backend.sweep().wakes == ()
    leaves(store.backend, claim("a"))
    clock.advance(1)  # for so long the queue respects a holder that it did not let in

    def called() -> list[str]:
        return woken(store.backend.sweep())

    assert until("b is woken", called) == ["b"]
    running(store.backend.enter(claim("b", wait=QUEUE)))


# Forgotten: the queue says free, the majority says taken.


@pytest.fixture
def forgotten(store: StoreOnNodes) -> StoreOnNodes:
    """Task a holds the key, and its queue knows nothing of it."""
    running(store.backend.enter(claim("a", ttl=60)))
    store.forget(0)
    return store


@pytest.mark.parametrize("wait", [WaitMode.NOT, WaitMode.PLACE, WaitMode.LOOK])
def test_the_majority_refuses_whom_the_queue_lets_in(
    forgotten: StoreOnNodes, wait: WaitMode
) -> None:
    verdict = forgotten.backend.enter(claim("b", wait=wait), b"message").verdict

    assert isinstance(verdict, Busy)
    assert verdict.holder is not None
    assert verdict.holder.task == "a"
    assert forgotten.backend.peek("key").holders == ()
    assert all(forgotten.holders(node) == ["a"] for node in range(1, 5))


@pytest.mark.parametrize("own_redis_nodes", [3], indirect=True)
def test_whoever_leaves_waits_for_the_node_that_decides_whether_it_held(
    own_redis_nodes: RedisNodes, clock: ManualClock
) -> None:
    mine = claim("a")
    with store_on_nodes(own_redis_nodes, clock, query="?socket_timeout=60") as store:
        running(store.backend.enter(mine))
        store.forget(0)
        store.nodes[2].pause()
        with ThreadPoolExecutor() as pool:
            leaving = pool.submit(store.backend.leave, mine, Outcome.OVER)
            until("the others have heard it", lambda: store.holders(1) == [])
            store.nodes[2].resume()
            assert leaving.result().verdict == Left(carried=False)


def test_a_message_that_the_majority_refuses_waits_at_the_head_and_is_woken_again(
    forgotten: StoreOnNodes, clock: ManualClock
) -> None:
    backend = forgotten.backend
    for task in "bc":
        message = f"message of {task}".encode()
        assert backend.enter(claim(task, wait=QUEUE), message).verdict == Park()

    for _ in range(15):  # more often than a message may lose its run
        assert backend.sweep().wakes == ()
        clock.advance(1)
        (wake,) = backend.sweep().wakes
        assert (wake.task, wake.message) == ("b", b"message of b")
        assert backend.enter(claim("b", wait=QUEUE), wake.message).verdict == Park()
    assert backend.leave(claim("a"), Outcome.OVER).verdict == Left(carried=False)
    clock.advance(1)

    assert woken(backend.sweep()) == ["b"]
    running(backend.enter(claim("b", wait=QUEUE)))
    assert woken(backend.leave(claim("b"), Outcome.DONE)) == ["c"]
    assert backend.dead() == []


def test_a_kept_message_that_the_majority_refuses_is_still_kept(
    forgotten: StoreOnNodes, clock: ManualClock
) -> None:
    mine = claim("b", wait=QUEUE, keep=True)

    assert forgotten.backend.enter(mine, b"first").verdict == Park()

    assert forgotten.backend.peek("key").parked == 1
    clock.advance(60)
    (wake,) = forgotten.backend.sweep().wakes
    assert wake.message == b"first"
    running(forgotten.backend.enter(mine, b"second"))


def test_a_place_that_the_majority_refuses_is_before_those_that_came_later(
    forgotten: StoreOnNodes, clock: ManualClock
) -> None:
    backend = forgotten.backend
    assert isinstance(backend.enter(claim("b", wait=PLACE)).verdict, Busy)
    park(backend, "c")
    backend.leave(claim("a"), Outcome.OVER)
    clock.advance(1)

    assert backend.sweep().wakes == ()
    assert isinstance(backend.enter(claim("newcomer")).verdict, Busy)
    running(backend.enter(claim("b", wait=PLACE)))


def test_a_slot_that_the_queue_forgot_is_not_given_again_and_another_is(
    store: StoreOnNodes,
) -> None:
    for task in "ab":
        running(store.backend.enter(claim(task, limit=3)))
    store.forget(0)

    assert running(store.backend.enter(claim("c", limit=3))).slot == 2
    assert isinstance(store.backend.enter(claim("d", limit=3)).verdict, Busy)


# Away with the majority: the message is kept, and its turn.


@pytest.mark.parametrize("own_redis_nodes", [3], indirect=True)
@pytest.mark.parametrize("keep", [False, True])
def test_who_finds_no_majority_is_not_taken_for_a_lost_run(
    store: StoreOnNodes, clock: ManualClock, keep: bool
) -> None:
    mine = claim("b", wait=QUEUE, keep=keep)
    for node in store.nodes[1:]:
        node.kill()

    for _ in range(12):
        with pytest.raises(BackendUnavailable):
            store.backend.enter(mine, b"message")
        store.backend._machine.leave(mine, Outcome.ABANDONED)  # as whoever asked does
        assert store.backend.peek("key").holders == ()
        assert store.backend.peek("key").lost == ()
        for wake in store.backend.sweep().wakes:
            assert wake.message == b"message"
        clock.advance(5)

    assert store.backend._machine.enter(claim("c", wait=QUEUE), b"later").verdict == Park()
    assert [turn.task for turn in store.backend.peek("key").grants] == ["b"]
    assert store.backend.message("key", "b") == b"message"
    assert store.backend.dead() == []


def test_the_queue_is_where_the_url_says(own_redis_nodes: RedisNodes, clock: ManualClock) -> None:
    query = f"?queue=127.0.0.1:{own_redis_nodes[3].port}"
    with store_on_nodes(own_redis_nodes, clock, query=query) as store:
        running(store.backend.enter(claim("a")))
        park(store.backend, "b")
        own_redis_nodes[0].kill()

        assert woken(store.backend.leave(claim("a"), Outcome.DONE)) == ["b"]
        assert isinstance(store.backend.enter(claim("b", wait=QUEUE)).verdict, Run)
