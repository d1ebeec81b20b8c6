"""An operator sees who holds a key although the queue has missed it, or a node is away."""

from __future__ import annotations

import pytest

from celery_dlock.core.state import KeyState, Outcome
from celery_dlock.errors import BackendUnavailable
from celery_dlock.testing.contract.words import claim, listed_keys, pages_of, park, running
from tests.contract.redlock_store import StoreOnNodes, clock, store
from tests.services.until import until

__all__ = ("clock", "store")  # fixtures

pytestmark = pytest.mark.server("redis")


def test_what_the_queue_has_forgotten_the_nodes_still_know(store: StoreOnNodes) -> None:
    token = running(store.backend.enter(claim("a", key="missed"))).token
    store.forget(0)
    running(store.backend.enter(claim("b", key="known")))
    park(store.backend, "c", key="known")

    assert listed_keys(store.backend, 1) == ["known", "missed"]
    assert pages_of(store.backend, 100).count("known") == 1
    missed, known, nobodys = store.backend.look(["missed", "known", "nobody's"])

    assert [(holder.task, holder.token) for holder in missed.holders] == [("a", token)]
    assert missed.parked == 0
    assert [holder.task for holder in known.holders] == ["b"]
    assert [entry.task for entry in known.waiting] == ["c"]
    assert nobodys == KeyState()


def test_a_released_key_is_not_told_though_its_token_is_known(store: StoreOnNodes) -> None:
    running(store.backend.enter(claim("a")))
    store.backend.leave(claim("a"), Outcome.DONE)

    assert listed_keys(store.backend) == []
    assert store.backend.look(["key"]) == [KeyState()]


def test_who_is_known_to_a_minority_holds_nothing(store: StoreOnNodes) -> None:
    running(store.backend.enter(claim("a")))
    for node in (0, 1, 2):
        store.forget(node)

    assert store.holders(4) == ["a"]
    # A node that is slow to answer might have known it, too.
    until("nobody holds it", lambda: store.backend.look(["key"]) == [KeyState()])


def test_without_a_minority_of_the_nodes_all_is_told(store: StoreOnNodes) -> None:
    running(store.backend.enter(claim("a", key="missed")))
    store.forget(0)
    for node in store.nodes[1:3]:
        node.kill()

    # Those that are left may be slow to answer, and are tried again.
    until("the key is told", lambda: listed_keys(store.backend) == ["missed"])
    until("its holder is seen", lambda: [h.task for h in seen(store, "missed").holders] == ["a"])


def test_while_the_queue_is_away_nothing_is_told_as_if_it_were_all(store: StoreOnNodes) -> None:
    running(store.backend.enter(claim("a")))
    store.nodes[0].kill()

    for waiting in (False, True):
        with pytest.raises(BackendUnavailable):
            listed_keys(store.backend, waiting=waiting)
    with pytest.raises(BackendUnavailable):
        store.backend.look(["key"])

    store.nodes[0].start()
    until("the queue is back", lambda: told_again(store) == ["key"])


def seen(store: StoreOnNodes, key: str) -> KeyState:
    (state,) = store.backend.look([key])
    return state


def told_again(store: StoreOnNodes) -> list[str] | None:
    try:
        return listed_keys(store.backend)
    except BackendUnavailable:
        return None
