"""What the end of a delivery makes of its task: done, over, to be repeated, abandoned."""

from __future__ import annotations

import pytest

from celery_dlock.core import machine
from celery_dlock.core.operations import Cancel, Enter, Leave, Reap, Renew
from celery_dlock.core.state import (
    Drop,
    KeyState,
    Left,
    Mode,
    NotHeld,
    Outcome,
    Park,
    Reason,
    Waiting,
)
from celery_dlock.core.turns import WAKE_AGAIN_FIRST
from tests.unit.one_key import START, TTL, OneKey, place, queued


@pytest.fixture
def key() -> OneKey:
    """A key that a holds."""
    key = OneKey()
    key.enter(queued("a"))
    return key


def test_a_task_that_must_repeat_goes_back_to_the_head(key: OneKey) -> None:
    # Given b that waits, And a that lost its lock, which b has by now
    key.enter(queued("b"))
    key.enter(queued("c"))
    key.passes(TTL)
    key.reap()
    key.enter(queued("b", "woken"))

    assert key.leave(queued("a"), Outcome.REPEAT) == NotHeld(carried=True)

    assert key.waiting == ["a", "c"]
    assert key.state.waiting[0].arrived == key.now
    assert key.running == ["b"]


def test_a_task_that_must_repeat_is_not_put_back_twice(key: OneKey) -> None:
    key.enter(queued("a", "copy"))

    assert key.leave(queued("a"), Outcome.REPEAT) == Left(carried=True)

    assert key.woken == ["a"]
    assert key.waiting == []


def test_a_turn_of_another_does_not_carry_a_task(key: OneKey) -> None:
    # Given a, which lost its lock, And b, which was woken for it and has not come yet
    key.enter(queued("b"))
    key.passes(TTL)
    key.reap()

    assert key.leave(queued("a"), Outcome.REPEAT) == NotHeld(carried=True)

    assert (key.woken, key.waiting) == (["b"], ["a"])


def test_a_task_that_was_woken_meanwhile_is_not_put_back(key: OneKey) -> None:
    # Given a copy of a, woken since a's lease ended
    key.enter(queued("a", "copy"))
    key.passes(TTL)
    key.reap()
    assert key.woken == ["a"]

    assert key.leave(queued("a"), Outcome.REPEAT) == NotHeld(carried=True)

    assert (key.woken, key.waiting, key.wakes) == (["a"], [], [])


def test_a_reserved_place_carries_no_message(key: OneKey) -> None:
    # Given a, which lost its lock, And for whose other delivery a place is reserved before c
    key.passes(TTL)
    key.enter(queued("b"))
    key.enter(place("a", "other"))
    key.enter(queued("c"))
    key.leave(queued("b"))
    assert key.woken == ["a"]

    key.leave(queued("a"), Outcome.REPEAT)

    # Then a's message is with the store, and woken
    assert (key.woken, key.waiting, key.wakes) == (["a"], ["c"], ["a"])


def test_a_task_whose_copy_runs_meanwhile_is_kept_behind_it(key: OneKey) -> None:
    # Given a, which lost its lock to a copy of itself
    key.passes(TTL)
    key.enter(queued("a", "copy"))

    # When it is to be repeated, Then its message is kept: the copy may die
    assert key.leave(queued("a"), Outcome.REPEAT) == NotHeld(carried=True)
    assert (key.running, key.waiting, key.wakes) == (["a"], ["a"], [])

    # And goes when the copy is through
    key.leave(queued("a", "copy"))
    assert (key.waiting, key.woken) == ([], [])


def test_a_message_put_back_takes_the_place_of_its_place(key: OneKey) -> None:
    # Given a, which lost its lock to b, And another delivery of a that has a place
    key.passes(TTL)
    key.enter(queued("b"))
    key.enter(place("a", "other"))

    assert key.leave(queued("a"), Outcome.REPEAT) == NotHeld(carried=True)

    # Then a waits once, And its message does not lapse with the place
    assert key.waiting == ["a"]
    key.passes(TTL - 1)
    key.reap()
    assert key.state.parked == 1


def test_a_task_that_does_not_queue_must_repeat_by_itself() -> None:
    key = OneKey()
    key.enter(place("a"))

    assert key.leave(place("a"), Outcome.REPEAT) == Left(carried=False)


def test_a_result_counts_although_the_lock_was_lost(key: OneKey) -> None:
    # Given a that lost its lock to b, after its write had been fenced
    key.enter(queued("b"))
    key.passes(TTL)
    key.reap()
    key.enter(queued("b", "woken"))

    assert key.leave(queued("a"), Outcome.DONE) == NotHeld(carried=True)

    assert key.enter(queued("a", "copy")) == Drop(Reason.DONE)
    assert key.running == ["b"]


def test_a_copy_of_what_is_done_takes_along_whatever_was_left_of_it() -> None:
    left = Waiting("a", Mode.EXCLUSIVE, 1, rank=1, arrived=START, expires=None)
    state = KeyState(waiting=(left,), parked=1, last=1, done=frozenset({"a"}))

    step = machine.enter(state, queued("a"), START)

    assert step.verdict == Drop(Reason.DONE)
    assert (step.state.waiting, step.state.parked, step.wakes) == ((), 0, ())


def test_a_copy_waits_behind_its_task_since_it_came(key: OneKey) -> None:
    key.passes(1)

    assert key.enter(queued("a", "copy")) == Park()

    assert [waiting.arrived for waiting in key.state.waiting] == [key.now]


def test_a_task_that_goes_on_elsewhere_takes_its_copy_along(key: OneKey) -> None:
    key.enter(queued("a", "copy"))

    assert key.leave(queued("a"), Outcome.OVER) == Left(carried=False)

    assert (key.waiting, key.woken, key.state.done) == ([], [], frozenset())


def test_a_run_that_was_lost_and_then_killed_is_one_lost_run(key: OneKey) -> None:
    key.passes(TTL)
    key.reap()

    key.leave(queued("a"), Outcome.ABANDONED)

    assert dict(key.state.lost) == {"a": 1}


def test_what_ends_takes_nobody_elses_turn() -> None:
    # Given two slots, And b woken into one of them
    key = OneKey()
    for task in ("a", "x", "b"):
        key.enter(queued(task, limit=2))
    key.leave(queued("x", limit=2))

    key.leave(queued("a", limit=2))

    assert key.woken == ["b"]


def test_a_killed_body_leaves_its_copy_and_its_turn(key: OneKey) -> None:
    # Given b that waits, And a whose body was killed, with no copy in the queue
    key.enter(queued("b"))

    assert key.leave(queued("a"), Outcome.ABANDONED) == Left(carried=False)

    assert key.woken == ["b"]
    assert key.enter(queued("a", "redelivered")) == Park()
    assert key.state.waiting[0].task == "a"


def test_a_copy_that_ends_takes_no_message_from_the_one_that_runs() -> None:
    # Given a task that runs, with its message kept, And a copy of it that expires on its way
    key = OneKey()
    key.enter(queued("a", keep=True))

    key.leave(queued("a", "copy"), Outcome.OVER)

    # Then it is still woken should its run be lost
    key.passes(TTL)
    key.reap()
    assert key.wakes == ["a"]


def test_who_says_again_what_nobody_heard_has_lost_what_another_holds(key: OneKey) -> None:
    key.passes(TTL)
    key.enter(queued("b"))

    assert key.leave(queued("a", again=True)) == NotHeld(carried=True)


def test_who_leaves_again_wakes_nobody_who_comes_by_itself(key: OneKey) -> None:
    key.enter(place("b"))
    key.enter(queued("c"))
    key.leave(queued("a"))
    assert key.woken == ["b"]

    key.leave(queued("a", again=True))

    assert key.wakes == []


def test_who_leaves_again_wakes_nobody_who_was_woken_again_since(key: OneKey) -> None:
    key.enter(queued("b"))
    key.leave(queued("a"))
    key.passes(WAKE_AGAIN_FIRST)
    key.reap()
    assert key.wakes == ["b"]

    key.leave(queued("a", again=True))

    assert key.wakes == []


def test_a_request_that_is_repeated_says_so_where_it_matters_and_else_is_the_same() -> None:
    leave = Leave(queued("a"), Outcome.REPEAT, b"message")
    assert leave.again() == Leave(queued("a", again=True), Outcome.REPEAT, b"message")
    for other in (Enter(queued("a"), b"message"), Renew(queued("a")), Reap("key")):
        assert other.again() is other
    assert Cancel("key", "a").again() == Cancel("key", "a")
