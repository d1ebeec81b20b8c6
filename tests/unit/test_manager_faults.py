"""The manager with a fault planted at each of its calls: nothing stays held."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_dlock.core.lease import SECOND
from celery_dlock.core.machine import MAX_LOST_RUNS
from celery_dlock.core.state import Claim, Drop, Mode, Outcome, Reason, Run, WaitMode
from celery_dlock.errors import BackendUnavailable
from celery_dlock.locks import manager as manager_module
from celery_dlock.locks.manager import Keeping
from tests.services.faulty import (
    KEEPING,
    KEYS,
    TTL,
    Faulty,
    TimeLimit,
    claims,
    fails_for,
    nth,
    taken,
    watched,
)
from tests.services.until import until


def test_a_request_without_an_answer_is_taken_back(store: Faulty) -> None:
    store.late = fails_for(("enter", "b"))
    with pytest.raises(BackendUnavailable):
        store.locks.acquire(claims(), KEEPING)
    assert ("enter", "b") in store.calls
    assert store.held() == set()
    assert watched(store.locks) == set()


def test_a_store_whose_answers_are_lost_for_a_while_puts_nothing_aside(store: Faulty) -> None:
    store.late = fails_for(("enter", "a"))
    for nonce in range(MAX_LOST_RUNS):
        asks = claims(keys=["a"], wait=WaitMode.QUEUE, patience=9 * SECOND)
        with pytest.raises(BackendUnavailable):
            store.locks.acquire([replace(asks[0], nonce=f"{nonce}")], KEEPING, b"message")
    store.late = fails_for()
    answer = store.locks.acquire(claims(keys=["a"], wait=WaitMode.QUEUE), KEEPING, b"message")
    assert taken(answer).keys == ("a",)
    assert store.dead() == []


@pytest.mark.parametrize("failing", ["a", "b"])
@pytest.mark.parametrize("options", [{}, {"keep": True}, {"ordered": True}], ids=str)
def test_nobody_overtakes_a_task_that_did_not_hear_that_its_turn_has_come(
    store: Faulty, failing: str, options: dict[str, bool]
) -> None:
    def asks(task: str) -> list[Claim]:
        asked = claims(task, ["a", "b"], wait=WaitMode.QUEUE, patience=9 * SECOND)
        return [replace(claim, **options) for claim in asked]  # type: ignore[arg-type]

    holder = taken(store.manager().acquire(claims("holder", ["a"]), KEEPING))
    store.enter(asks("first")[0], b"first")
    store.enter(asks("second")[0], b"second")
    store.managers[-1]._wake = lambda wakes: None
    store.managers[-1].release(holder, Outcome.DONE)
    store.late = fails_for(("enter", failing), ("leave", "a"), ("leave", "b"))
    with pytest.raises(BackendUnavailable):
        store.locks.acquire(asks("first"), KEEPING, b"first", woken="a")
    store.late = fails_for()
    assert store.held() == set()
    assert store.message("a", "first:0:0") == b"first"
    (copy,) = [replace(claim, nonce="copy") for claim in asks("first")[:1]]
    assert store.enter(asks("second")[0], b"second").verdict == Drop(Reason.WAITING)
    assert isinstance(store.enter(copy, b"first").verdict, Run)


def test_a_task_that_reads_its_first_key_keeps_its_turn_at_the_one_that_orders_it(
    store: Faulty,
) -> None:
    read, *writes = claims(wait=WaitMode.QUEUE, patience=9 * SECOND)
    store.late = fails_for(("enter", "c"))
    with pytest.raises(BackendUnavailable):
        store.locks.acquire(
            [replace(read, mode=Mode.SHARED), *writes], KEEPING, b"m", parents=["b"]
        )
    assert [store.message(key, "t:0:0") for key in KEYS] == [None, None, b"m"]


def test_a_task_that_fails_where_the_store_does_not_answer_keeps_no_turn(store: Faulty) -> None:
    store.late = fails_for(("enter", "a"))
    asks = claims(keys=["a"], wait=WaitMode.QUEUE)
    with pytest.raises(BackendUnavailable):
        store.locks.acquire(asks, KEEPING, b"message", comes_back=False)
    assert store.message("a", "t:0:0") is None
    assert store.peek("a").grants == ()


def test_the_error_is_that_of_the_request_even_when_taking_back_fails_too(store: Faulty) -> None:
    store.late = fails_for(("enter", "b"))
    store.fault = fails_for(("leave", "a"), ("leave", "b"))
    with pytest.raises(BackendUnavailable, match="no answer to enter b"):
        store.locks.acquire(claims(), KEEPING)
    # What cannot be reached expires with its lease, for nobody renews it
    assert store.held() == {"a", "b"}
    assert watched(store.locks) == set()
    store.late = fails_for()
    store.clock.advance(TTL)
    assert taken(store.locks.acquire(claims("next"), KEEPING)).keys == KEYS


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(1, len(KEYS) + 1))
def test_a_time_limit_at_any_call_of_acquiring_leaves_nothing_held(
    store: Faulty, number: int, late: bool
) -> None:
    strikes = nth(number, TimeLimit())
    if late:
        store.late = strikes
    else:
        store.fault = strikes
    with pytest.raises(TimeLimit):
        store.locks.acquire(claims(), KEEPING)
    assert len(store.calls) == number + len(KEYS)
    assert store.held() == set()
    assert watched(store.locks) == set()


@pytest.mark.parametrize("number", range(1, len(KEYS) + 3))
def test_a_time_limit_while_being_refused_leaves_nothing_held(store: Faulty, number: int) -> None:
    taken(store.manager().acquire(claims("holder", ["c"]), KEEPING))
    store.late = nth(number, TimeLimit())
    with pytest.raises(TimeLimit):
        store.locks.acquire(claims(), KEEPING)
    assert store.held() == {"c"}


@pytest.mark.parametrize("number", range(1, len(KEYS) + 1))
def test_a_time_limit_while_the_keeper_takes_over_leaves_nothing_held(
    store: Faulty, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    strikes = nth(number, TimeLimit())
    watch = store.locks._keeper.watch

    def interrupted(*arguments: object) -> None:
        watch(*arguments)  # type: ignore[arg-type]
        strikes("watch", "")

    monkeypatch.setattr(store.locks._keeper, "watch", interrupted)
    with pytest.raises(TimeLimit):
        store.locks.acquire(claims(), KEEPING)
    assert store.held() == set()
    assert watched(store.locks) == set()


def test_a_time_limit_while_the_lease_is_made_leaves_nothing_held(
    store: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise TimeLimit

    monkeypatch.setattr(manager_module, "Lease", interrupted)
    with pytest.raises(TimeLimit):
        store.locks.acquire(claims(), KEEPING)
    assert store.held() == set()
    assert watched(store.locks) == set()


@pytest.mark.parametrize("number", range(1, 2 * len(KEYS) + 1))
def test_a_time_limit_while_releasing_can_be_made_good_by_releasing_again(
    store: Faulty, number: int
) -> None:
    lease = taken(store.locks.acquire(claims(), KEEPING))
    strikes = nth(number, TimeLimit())
    store.fault = store.late = strikes
    with pytest.raises(TimeLimit):
        store.locks.release(lease, Outcome.DONE)
    assert watched(store.locks) == set()
    store.locks.release(lease, Outcome.DONE)
    assert store.held() == set()


@pytest.mark.parametrize("struck", [True, False], ids=["a time limit", "no answer"])
def test_who_was_woken_in_an_answer_that_was_lost_is_woken_again_and_nothing_is_told_as_lost(
    store: Faulty, struck: bool
) -> None:
    woken: list[str] = []
    manager = store.manager(lambda wakes: woken.extend(wake.task for wake in wakes))
    lease = taken(manager.acquire(claims(keys=["a"]), KEEPING))
    store.enter(claims("next", ["a"], wait=WaitMode.QUEUE)[0], b"message")
    store.late = nth(1, TimeLimit() if struck else BackendUnavailable("no answer"))
    with pytest.raises(TimeLimit if struck else BackendUnavailable):
        manager.release(lease, Outcome.DONE)
    assert woken == []
    if struck:
        manager.release(lease, Outcome.DONE)
    until("it is called", lambda: woken == ["next:0:0"])
    assert [term.noticed for term in lease.terms] == [None]


@pytest.mark.parametrize("in_time", [True, False])
def test_a_lease_that_ended_before_it_was_given_back_is_lost_and_one_that_ends_meanwhile_is_not(
    store: Faulty, in_time: bool
) -> None:
    manager = store.manager(monotonic=lambda: store.clock() / SECOND)
    lease = taken(manager.acquire(claims(keys=["a"]), Keeping(None, lambda *_: None)))
    if not in_time:
        store.clock.advance(TTL)
    store.fault = lambda operation, key: store.clock.advance(TTL)
    store.late = fails_for(("leave", "a"))
    with pytest.raises(BackendUnavailable):
        manager.release(lease, Outcome.DONE)
    store.fault = store.late = fails_for()
    manager.close()
    noticed = [term.noticed for term in lease.terms]
    assert noticed == [None if in_time else "it was not renewed in time"]


@pytest.mark.parametrize("failing", KEYS)
def test_a_key_that_cannot_be_released_does_not_keep_the_others(
    store: Faulty, failing: str
) -> None:
    lease = taken(store.locks.acquire(claims(), KEEPING))
    store.fault = fails_for(("leave", failing))
    with pytest.raises(BackendUnavailable):
        store.locks.release(lease, Outcome.DONE)
    assert store.held() == {failing}
    assert watched(store.locks) == set()


def test_a_task_that_ended_without_a_lease_is_not_woken_again_for_a_store_that_was_unavailable(
    store: Faulty,
) -> None:
    (mine,) = claims(keys=["a"], wait=WaitMode.QUEUE, done_ttl=int(TTL * SECOND))
    holder = taken(store.manager().acquire(claims("holder", ["a"]), KEEPING))
    store.enter(mine, b"message")
    store.fault = fails_for(("leave", "a"))
    store.locks.take_back([mine], Outcome.DONE)
    assert store.peek("a").parked == 1
    store.fault = fails_for()
    until("it is heard", lambda: store.peek("a").parked == 0)
    assert store.enter(mine).verdict == Drop(Reason.DONE)
    assert holder.lost is False


@pytest.mark.parametrize("there", [True, False])
def test_what_was_not_heard_is_said_once_more_at_the_end_and_never_after(
    store: Faulty, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    closed: list[int] = []
    monkeypatch.setattr(store, "close", lambda: closed.append(len(store.calls)))
    lease = taken(store.locks.acquire(claims(keys=["a"]), KEEPING))
    store.fault = fails_for(("leave", "a"))
    with pytest.raises(BackendUnavailable):
        store.locks.release(lease, Outcome.DONE)
    if there:
        store.fault = fails_for()
    before = len(store.calls)
    store.locks.close()
    assert store.held() == (set() if there else {"a"})
    assert closed == [before + 1]
    assert not store.locks._pending_releases._pending
