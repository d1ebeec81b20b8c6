"""What a majority decides while other nodes are killed, paused, cut off, or lose their replies."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from celery_dlock.core.state import (
    Busy,
    Claim,
    Left,
    Mode,
    NotHeld,
    Outcome,
    Renewed,
    Same,
    Unknown,
)
from celery_dlock.errors import BackendUnavailable
from celery_dlock.testing import ManualClock
from celery_dlock.testing.contract.words import ENQUEUE, claim, running
from tests.contract.redlock_store import (
    ANSWER,
    HARMS,
    Harm,
    StoreOnNodes,
    clock,
    eventually,
    gets_it,
    store,
    store_on_nodes,
    warm,
)
from tests.services.proxy import Proxy, proxy_to
from tests.services.redis import RedisServer
from tests.services.redis_nodes import RedisNodes
from tests.services.until import until

__all__ = ("clock", "store")  # fixtures

pytestmark = pytest.mark.server("redis")

THREE = pytest.mark.parametrize("own_redis_nodes", [3], indirect=True)


@pytest.fixture
def proxies(own_redis_nodes: RedisNodes) -> Iterator[list[Proxy]]:
    with ExitStack() as stack:
        yield [stack.enter_context(proxy_to(node.port)) for node in own_redis_nodes]


@HARMS
def test_a_minority_is_not_missed(store: StoreOnNodes, harm: Harm) -> None:
    running(store.backend.enter(claim("before", key="before")))
    for node in store.nodes[3:]:
        harm(node)

    started = time.monotonic()
    for number in range(50):
        mine = claim(f"task {number}")
        running(store.backend.enter(mine))
        assert isinstance(store.another().enter(claim("other")).verdict, Busy)
        assert isinstance(store.backend.renew([mine])[0], Renewed)
        assert isinstance(store.backend.leave(mine, Outcome.DONE).verdict, Left)

    # Nobody waits for a node that does not answer: a majority that has is enough.
    assert time.monotonic() - started < 50 * ANSWER
    assert isinstance(store.backend.renew([claim("before", key="before")])[0], Renewed)


@THREE
@HARMS
def test_without_a_majority_nobody_starts_and_nothing_is_held_beyond_its_lease(
    store: StoreOnNodes, clock: ManualClock, harm: Harm
) -> None:
    running(store.backend.enter(claim("before", key="before")))
    for node in store.nodes[1:]:
        harm(node)

    with pytest.raises(BackendUnavailable, match="majority"):
        store.backend.enter(claim("a"))
    with pytest.raises(BackendUnavailable, match="majority"):
        store.backend.renew([claim("before", key="before")])
    assert store.holders(0) == []
    assert store.backend.peek("key").holders == ()

    for node in store.nodes[1:]:
        if harm is RedisServer.pause:
            node.resume()
        else:
            node.start()
    if harm is RedisServer.kill:  # they are empty, and wait for the longest lease they may have had
        with pytest.raises(BackendUnavailable):
            store.another().enter(claim("b"))
    clock.advance(11)
    gets_it(store.another(), claim("b"))


def test_a_majority_that_takes_longer_than_the_lease_is_none(store: StoreOnNodes) -> None:
    for node in store.nodes[1:]:
        node.pause()

    def resume() -> None:
        for node in store.nodes[1:]:
            node.resume()

    later = threading.Timer(ANSWER / 2, resume)
    later.start()

    with pytest.raises(BackendUnavailable, match="longer than the lease"):
        store.backend.enter(claim("a", ttl=ANSWER / 4))

    later.join()
    until("all is freed", lambda: all(store.holders(node) == [] for node in range(5)))
    assert store.backend.peek("key").holders == ()


@THREE
def test_a_lease_that_a_majority_does_not_have_any_more_is_lost(store: StoreOnNodes) -> None:
    running(store.backend.enter(claim("a")))
    for node in (1, 2):
        store.forget(node)

    assert store.backend.renew([claim("a")]) == [NotHeld()]
    assert store.backend.leave(claim("a"), Outcome.OVER).verdict == NotHeld(carried=False)


@THREE
def test_a_lease_of_which_too_few_answer_is_not_known_to_be_lost(store: StoreOnNodes) -> None:
    running(store.backend.enter(claim("kept", key="kept")))
    running(store.backend.enter(claim("doubtful", key="doubtful")))
    store.nodes[2].kill()
    with store.nodes[1].client() as client:
        (name,) = client.scan_iter("*{doubtful}:lock")
        client.delete(name)

    kept, doubtful = store.backend.renew(
        [claim("kept", key="kept"), claim("doubtful", key="doubtful")]
    )

    assert isinstance(kept, Renewed)
    assert doubtful == Unknown()


def test_a_lease_outlives_a_restart_of_each_node(store: StoreOnNodes, clock: ManualClock) -> None:
    mine = claim("a", ttl=30)
    running(store.backend.enter(mine))

    for number, node in enumerate(store.nodes):
        node.restart()
        for turn in range(5):  # the node votes again when it can have forgotten no lease any more
            clock.advance(10)
            eventually(store.backend, claim("other", key=f"other {number} {turn}"))
            assert isinstance(store.backend.renew([mine])[0], Renewed)

    assert all(store.holders(node) == ["a"] for node in range(5))


@HARMS
def test_a_late_leave_frees_nobody(store: StoreOnNodes, clock: ManualClock, harm: Harm) -> None:
    running(store.backend.enter(claim("a")))
    harm(store.nodes[4])
    clock.advance(11)
    token = running(store.another().enter(claim("b"))).token

    assert isinstance(store.backend.leave(claim("a"), Outcome.DONE).verdict, NotHeld)

    assert all(store.holders(node) == ["b"] for node in range(4))
    assert running(store.backend.enter(claim("b"))).token == token


def test_who_has_lost_a_reply_asks_again_and_holds_once(
    own_redis_nodes: RedisNodes, proxies: list[Proxy], clock: ManualClock
) -> None:
    with store_on_nodes(own_redis_nodes, clock, [proxy.port for proxy in proxies]) as store:
        warm(store.backend)
        for proxy in proxies:
            proxy.lose_replies(1, lambda request: b"EVALSHA" in request)

        token = running(store.backend.enter(claim("a"))).token

        assert sum(len(proxy.lost) for proxy in proxies) >= 3
        assert all(store.holders(node) == ["a"] for node in range(5))
        assert running(store.another().enter(claim("a"))).token == token


def test_what_was_taken_without_a_reply_is_released_when_the_node_is_back(
    own_redis_nodes: RedisNodes, proxies: list[Proxy], clock: ManualClock
) -> None:
    with store_on_nodes(own_redis_nodes, clock, [proxy.port for proxy in proxies]) as store:
        warm(store.backend)
        for proxy in proxies[1:4]:
            proxy.lose_replies(50, lambda request: b"EVALSHA" in request)

        with pytest.raises(BackendUnavailable):
            store.backend.enter(claim("a"))
        assert any(store.holders(node) == ["a"] for node in range(1, 4))

        for proxy in proxies:
            proxy.lose_replies(0, lambda request: False)
        gets_it(store.backend, claim("b"))

        def only_b_holds() -> bool:
            store.backend.renew([claim("b")])  # who was not back yet hears of it then
            return all(store.holders(node) == ["b"] for node in range(5))

        until("only the second holds", only_b_holds)


def test_of_two_deliveries_of_a_task_that_two_nodes_know_one_runs(store: StoreOnNodes) -> None:
    running(store.backend.enter(claim("a", "first")))
    store.forget(0)

    verdict = store.backend.enter(claim("a", "second")).verdict

    assert isinstance(verdict, Same)
    assert verdict.holder.nonce == "first"


def test_a_late_reply_does_not_answer_the_next_question(store: StoreOnNodes) -> None:
    for number in range(20):
        store.nodes[1 + number % 4].pause()
        mine = claim("a", key=f"key {number}")
        running(store.backend.enter(mine))
        store.nodes[1 + number % 4].resume()
        store.backend.leave(mine, Outcome.OVER)

    assert all(store.holders(node, f"key {n}") == [] for node in range(5) for n in range(20))


# What the queue proposes may be refused: whoever asks again hears what the majority gave.


@pytest.mark.parametrize(
    "again",
    [claim("a", limit=3, wait=ENQUEUE), claim("a", limit=3), claim("a", mode=Mode.SHARED)],
    ids=["publishes", "asks", "reads"],
)
def test_whoever_asks_again_hears_the_majoritys_token(store: StoreOnNodes, again: Claim) -> None:
    # Given a queue that forgot how far it was: what it proposes is refused
    before = running(store.backend.enter(claim("before", limit=3)))
    store.backend.leave(claim("before", limit=3), Outcome.OVER)
    with store.nodes[0].client() as client:
        client.delete(*client.scan_iter(f"{store.prefix}*:token"))

    run = running(store.backend.enter(claim("a", limit=3)))

    assert run.token > before.token
    assert running(store.backend.enter(again, b"message")) == run
    assert [h.token for h in store.backend._machine.peek("key").holders] == [run.token]
    verdict = store.backend.enter(claim("a", "another", limit=3)).verdict
    assert isinstance(verdict, Same)
    assert verdict.holder.token == run.token


@pytest.mark.parametrize("mode", Mode)
def test_who_asks_without_the_queue_hears_its_token(store: StoreOnNodes, mode: Mode) -> None:
    run = running(store.backend.enter(claim("a")))
    store.nodes[0].kill()

    assert running(store.backend.enter(claim("a", mode=mode))) == run
