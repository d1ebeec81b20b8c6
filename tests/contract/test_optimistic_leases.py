"""Rows that live as long as their process: what that means for holders, and what it costs."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from celery_dlock.core.state import (
    Busy,
    Drop,
    Left,
    NotHeld,
    Outcome,
    Park,
    Reason,
    WaitMode,
)
from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.consensus.commit import KeyMutexes
from celery_dlock.stores.consensus.rows import Commit, Kind, Name
from celery_dlock.testing.contract.words import claim, park, running, woken
from tests.contract.memory_rows import RowsBackend
from tests.contract.rows_store import die, flights, lost, options, other, store
from tests.services.until import until

__all__ = ("options", "other", "store")  # fixtures


def test_a_free_key_costs_one_flight_to_take_and_one_to_give_back(store: RowsBackend) -> None:
    for outcome in (Outcome.DONE, Outcome.OVER):
        for task in "ab":
            running(store.enter(claim(f"{task} {outcome}")))
            assert flights(store) == 1
            store.leave(claim(f"{task} {outcome}"), outcome)
            assert flights(store) == 1


def test_nothing_is_left_of_a_key_that_nobody_uses(store: RowsBackend) -> None:
    for outcome in (Outcome.OVER, Outcome.DONE):
        running(store.enter(claim(outcome.value)))
        store.leave(claim(outcome.value), outcome)

    assert set(store.rows.shelf.rows) == {Name(Kind.DONE, "key", "done")}


def test_a_holder_whose_process_is_gone_has_expired(store: RowsBackend) -> None:
    first = running(store.enter(claim("a")))
    assert isinstance(store.enter(claim("b")).verdict, Busy)

    die(store)

    assert store.renew([claim("a")]) == [NotHeld()]
    assert running(store.enter(claim("b"))).token > first.token
    assert isinstance(store.leave(claim("a"), Outcome.DONE).verdict, NotHeld)
    assert isinstance(store.enter(claim("c")).verdict, Busy)


def test_a_task_and_a_nonce_that_join_to_the_same_text_are_told_apart(store: RowsBackend) -> None:
    running(store.enter(claim("a|b", "c")))

    assert isinstance(store.leave(claim("a", "b|c"), Outcome.OVER).verdict, NotHeld)

    assert isinstance(store.leave(claim("a|b", "c"), Outcome.OVER).verdict, Left)


def test_a_task_that_comes_again_gets_a_new_token(store: RowsBackend) -> None:
    first = running(store.enter(claim("a")))
    die(store)

    assert running(store.enter(claim("a"))).token > first.token
    assert isinstance(store.leave(claim("a"), Outcome.OVER).verdict, Left)


def test_after_a_lost_reply_the_same_request_is_the_same_grant(store: RowsBackend) -> None:
    with lost(store, "after_commit"):
        store.enter(claim("a"))
    again = running(store.enter(claim("a")))
    assert again == running(store.enter(claim("a")))

    with lost(store, "after_commit"):
        store.leave(claim("a"), Outcome.DONE)
    assert store.leave(claim("a"), Outcome.DONE).verdict == NotHeld(carried=True)
    assert store.enter(claim("a", "copy")).verdict == Drop(Reason.DONE)


def test_a_message_that_is_gone_is_woken_all_the_same(store: RowsBackend) -> None:
    running(store.enter(claim("a")))
    park(store, "b")
    store.rows.drop(Name(Kind.MESSAGE, "key", "b"))

    assert woken(store.leave(claim("a"), Outcome.DONE)) == ["b"]


def test_a_key_that_never_stands_still_is_unavailable_for_now(
    store: RowsBackend, other: RowsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_dlock.stores.consensus.commit.COMMIT_TIMEOUT", 0.05)

    def overtake(_: Commit) -> None:
        number = overtake.__dict__["number"] = overtake.__dict__.get("number", 0) + 1
        other.enter(claim(f"other {number}", wait=WaitMode.QUEUE), b"m")

    running(other.enter(claim("holder")))
    store.rows.before_commit = overtake
    with pytest.raises(BackendUnavailable, match="keep changing"):
        store.enter(claim("a", wait=WaitMode.QUEUE), b"m")

    store.rows.before_commit = lambda _: None
    assert store.enter(claim("a", wait=WaitMode.QUEUE), b"m").verdict == Park()


def test_a_release_does_not_stand_in_line_behind_those_that_wait_for_it(
    store: RowsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_dlock.stores.consensus.commit.COMMIT_TIMEOUT", 600)
    running(store.enter(claim("a")))
    assert isinstance(store.enter(claim("b")).verdict, Busy)

    with ThreadPoolExecutor() as pool, store._transactions._mutexes.at("key", 1):
        left = pool.submit(store.leave, claim("a"), Outcome.DONE)
        until("it is released", left.done)


def test_a_time_limit_that_strikes_as_its_turn_comes_takes_nobody_the_turn() -> None:
    mutexes = KeyMutexes()
    locks = mutexes._locks()
    locks[:] = [cast("Any", Struck()) for _ in locks]

    with pytest.raises(TimeoutError), mutexes.at("key", 1):
        pass

    assert all(lock.free for lock in cast("list[Struck]", locks))


class Struck:
    """A lock that is taken, and then the time limit strikes."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.free = True

    def acquire(self, timeout: float) -> bool:
        self._lock.acquire()
        self.free = False
        raise TimeoutError("a soft time limit")

    def release(self) -> None:
        self._lock.release()
        self.free = True
