"""The queue's node is away, or has forgotten: contention is rescheduled, and no message is lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_dlock.core.state import Left, Mode, Park, Same, WaitMode
from celery_dlock.errors import BackendUnavailable
from celery_dlock.testing import ManualClock
from celery_dlock.testing.contract.words import ENQUEUE, PLACE, QUEUE, SECOND, claim
from tests.contract.key import ABANDONED, OVER, Key
from tests.contract.redlock_store import (
    HARMS,
    Harm,
    StoreOnNodes,
    clock,
    eventually,
    leaves,
    store,
    store_on_nodes,
)
from tests.services.redis_nodes import RedisNodes
from tests.services.until import until

__all__ = ("clock", "store")  # fixtures

pytestmark = pytest.mark.server("redis")


# Away.


@HARMS
def test_contention_is_rescheduled_while_the_queue_is_away(store: StoreOnNodes, harm: Harm) -> None:
    harm(store.nodes[0])
    for wait in (WaitMode.NOT, WaitMode.PLACE, WaitMode.LOOK, WaitMode.QUEUE):
        key = Key(store.backend, store.key.clock, f"waits {wait}")
        token = key.runs("a", wait=wait).token

        refused = key.refuses("b", wait=wait)

        assert refused.holder is not None
        assert (refused.holder.task, refused.holder.token) == ("a", token)
        assert 9 * SECOND < refused.left <= 10 * SECOND
        assert not refused.full


@HARMS
def test_a_key_is_free_though_its_queue_does_not_hear_it(store: StoreOnNodes, harm: Harm) -> None:
    assert store.backend.note("key", 5, {"a": b"a"})
    harm(store.nodes[0])
    first = store.key.runs("a")

    # Said again by whoever left, until the queue knows what is done.
    with pytest.raises(
        BackendUnavailable, match=r"queue's node .* released '.*', and is told again"
    ):
        store.key.leave("a")

    assert Key(store.another(), store.key.clock).runs("b").token > first.token
    for asked in (
        lambda: store.key.enter("a", wait=ENQUEUE),  # who publishes in order
        lambda: store.backend.note("key", 5, {"a": b"b"}),
        lambda: store.backend.notes("key"),
    ):
        with pytest.raises(BackendUnavailable):
            asked()


def test_deliveries_readers_and_slots_go_on_while_the_queue_is_away(store: StoreOnNodes) -> None:
    store.nodes[0].kill()
    store.key.runs("a", nonce="first")

    # Another delivery of a running task never writes a result
    verdict = store.key.asks("a", "second", wait=QUEUE)
    assert isinstance(verdict, Same)
    assert verdict.holder.nonce == "first"

    read, three = (Key(store.backend, store.key.clock, name) for name in ("read", "three"))
    read.runs("r", "s", "t", mode=Mode.SHARED)
    read.refuses("w")
    slots = [three.runs(task, limit=3) for task in "abc"]
    three.refuses("d", limit=3)
    assert sorted(run.slot for run in slots) == [0, 1, 2]
    assert len({run.token for run in slots}) == 3


def test_the_queue_waits_for_who_started_while_it_was_away(store: StoreOnNodes) -> None:
    store.nodes[0].kill()
    store.key.runs("a", ttl=60)
    store.nodes[0].start()

    def parked() -> bool:
        return eventually(store.backend, claim("b", wait=QUEUE), b"b").verdict == Park()

    until("b waits in the queue", parked)
    assert store.key.sweeps() == []
    leaves(store.backend, claim("a"))
    store.key.passes(1)  # for so long the queue respects a holder that it did not let in

    assert until("b is woken", store.key.sweeps) == ["b"]
    store.key.runs("b", wait=QUEUE)


# Forgotten: the queue says free, the majority says taken.


@pytest.fixture
def forgotten(store: StoreOnNodes) -> StoreOnNodes:
    """Task a holds the key, and its queue knows nothing of it."""
    store.key.runs("a", ttl=60)
    store.forget(0)
    return store


@pytest.mark.parametrize("wait", [WaitMode.NOT, WaitMode.LOOK, WaitMode.PLACE])
def test_the_majority_may_refuse_who_is_let_in(forgotten: StoreOnNodes, wait: WaitMode) -> None:
    holder = forgotten.key.refuses("b", wait=wait).holder

    assert holder is not None
    assert holder.task == "a"
    assert forgotten.key.holders == []
    assert all(forgotten.holders(node) == ["a"] for node in range(1, 5))


def test_a_place_that_the_majority_refuses_keeps_its_rank(forgotten: StoreOnNodes) -> None:
    forgotten.key.refuses("b", wait=PLACE)
    forgotten.key.parks("c")
    forgotten.key.leaves("a", OVER)
    forgotten.key.passes(1)

    assert forgotten.key.sweeps() == []
    forgotten.key.refuses("newcomer")
    forgotten.key.runs("b", wait=PLACE)


@pytest.mark.parametrize("own_redis_nodes", [3], indirect=True)
def test_whoever_leaves_waits_for_the_node_that_decides_whether_it_held(
    own_redis_nodes: RedisNodes, clock: ManualClock
) -> None:
    with store_on_nodes(own_redis_nodes, clock, query="?socket_timeout=60") as store:
        store.key.runs("a")
        store.forget(0)
        store.nodes[2].pause()
        with ThreadPoolExecutor() as pool:
            leaving = pool.submit(store.key.leave, "a", OVER)
            until("the others have heard it", lambda: store.holders(1) == [])
            store.nodes[2].resume()
            assert leaving.result().verdict == Left(carried=False)


def test_a_message_that_the_majority_refuses_waits_at_the_head(forgotten: StoreOnNodes) -> None:
    key = forgotten.key
    key.parks("b", "c")

    for _ in range(15):  # more often than a message may lose its run
        assert key.sweeps() == []
        key.passes(1)
        (wake,) = key.sweep().wakes
        assert (wake.task, wake.message) == ("b", b"message of b")
        key.parks("b")
    assert key.leave("a", OVER).verdict == Left(carried=False)
    key.passes(1)

    assert key.sweeps() == ["b"]
    key.runs("b", wait=QUEUE)
    assert key.leaves("b") == ["c"]
    assert key.backend.dead() == []


def test_a_kept_message_that_the_majority_refuses_is_still_kept(forgotten: StoreOnNodes) -> None:
    forgotten.key.parks("b", keep=True)

    assert forgotten.key.parked == 1
    forgotten.key.passes(60)
    (wake,) = forgotten.key.sweep().wakes
    assert wake.message == b"message of b"
    forgotten.key.runs("b", wait=QUEUE, keep=True, message=b"second")


def test_a_slot_that_the_queue_forgot_is_not_given_again(store: StoreOnNodes) -> None:
    store.key.runs("a", "b", limit=3)
    store.forget(0)

    assert store.key.runs("c", limit=3).slot == 2
    store.key.refuses("d", limit=3)


# Away with the majority: the message is kept, and its turn.


@pytest.mark.parametrize("own_redis_nodes", [3], indirect=True)
@pytest.mark.parametrize("keep", [False, True])
def test_who_finds_no_majority_is_not_taken_for_a_lost_run(store: StoreOnNodes, keep: bool) -> None:
    mine = claim("b", wait=QUEUE, keep=keep)
    for node in store.nodes[1:]:
        node.kill()

    for _ in range(12):
        with pytest.raises(BackendUnavailable):
            store.backend.enter(mine, b"message")
        store.backend._machine.leave(mine, ABANDONED)  # as whoever asked does
        assert store.key.holders == []
        assert store.backend.peek("key").lost == ()
        for wake in store.key.sweep().wakes:
            assert wake.message == b"message"
        store.key.passes(5)

    assert store.backend._machine.enter(claim("c", wait=QUEUE), b"later").verdict == Park()
    assert store.key.turns == ["b"]
    assert store.backend.message("key", "b") == b"message"
    assert store.backend.dead() == []


def test_the_queue_is_where_the_url_says(own_redis_nodes: RedisNodes, clock: ManualClock) -> None:
    query = f"?queue=127.0.0.1:{own_redis_nodes[3].port}"
    with store_on_nodes(own_redis_nodes, clock, query=query) as store:
        store.key.runs("a")
        store.key.parks("b")
        own_redis_nodes[0].kill()

        assert store.key.leaves("a") == ["b"]
        store.key.runs("b", wait=QUEUE)
