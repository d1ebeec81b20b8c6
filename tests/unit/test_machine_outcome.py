"""What the end of a delivery makes of its task and of its message, kept or not.

What a store shows as well is in the contract over memory; here is what only the rules can show.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_dlock.core import machine
from celery_dlock.core.operations import Cancel, Enter, Leave, Reap, Renew
from celery_dlock.core.state import (
    WINDOW,
    Drop,
    Ending,
    Grant,
    KeyState,
    Left,
    Mode,
    NotHeld,
    Outcome,
    Park,
    Reason,
    Run,
    Waiting,
)
from celery_dlock.core.turns import WAKE_AGAIN_FIRST
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.memory import MemoryBackend
from celery_dlock.testing import ManualClock
from tests.unit.one_key import PATIENCE, START, TTL, OneKey, claim, kept, place, queued


@pytest.fixture
def running_kept() -> OneKey:
    """A key that a holds, and whose message is kept."""
    key = OneKey()
    assert key.enter(kept("a")) == Run(slot=0, token=1)
    return key


def test_a_task_that_must_repeat_is_not_put_back_twice(key: OneKey) -> None:
    key.enter(queued("a", "copy"))

    assert key.leave(queued("a"), Outcome.REPEAT) == Left(carried=True)

    assert key.woken == ["a"]
    assert key.waiting == []


def test_a_turn_of_another_does_not_carry_a_task(key: OneKey) -> None:
    key.enter(queued("b"))
    key.passes(TTL)
    key.reap()

    assert key.leave(queued("a"), Outcome.REPEAT) == NotHeld(carried=True)

    assert (key.woken, key.waiting) == (["b"], ["a"])


def test_a_task_that_was_woken_meanwhile_is_not_put_back(key: OneKey) -> None:
    key.enter(queued("a", "copy"))
    key.passes(TTL)
    key.reap()
    assert key.woken == ["a"]

    assert key.leave(queued("a"), Outcome.REPEAT) == NotHeld(carried=True)

    assert (key.woken, key.waiting, key.wakes) == (["a"], [], [])


def test_a_reserved_place_carries_no_message(key: OneKey) -> None:
    # The key is reserved for the place of another delivery of a, which lost its lock
    key.passes(TTL)
    key.enter(queued("b"))
    key.enter(place("a", "other"))
    key.enter(queued("c"))
    key.leave(queued("b"))
    assert key.woken == ["a"]

    key.leave(queued("a"), Outcome.REPEAT)

    assert (key.woken, key.waiting, key.wakes) == (["a"], ["c"], ["a"])


def test_a_message_put_back_takes_the_place_of_its_place(key: OneKey) -> None:
    key.passes(TTL)
    key.enter(queued("b"))
    key.enter(place("a", "other"))

    assert key.leave(queued("a"), Outcome.REPEAT) == NotHeld(carried=True)

    # Its message does not lapse with the place
    assert key.waiting == ["a"]
    key.passes(TTL - 1)
    key.reap()
    assert key.state.parked == 1


def test_a_duplicate_of_what_is_done_takes_along_whatever_was_left_of_it() -> None:
    left = Waiting("a", Mode.EXCLUSIVE, rank=1, arrived=START, expires=None)
    state = KeyState(waiting=(left,), parked=1, last=1, done=frozenset({"a"}))

    step = machine.enter(state, queued("a"), START)

    assert step.verdict == Drop(Reason.DONE)
    assert (step.state.waiting, step.state.parked, step.wakes) == ((), 0, ())


def test_a_duplicate_waits_behind_its_task_since_it_came(key: OneKey) -> None:
    key.passes(1)

    assert key.enter(queued("a", "copy")) == Park()

    assert [waiting.arrived for waiting in key.state.waiting] == [key.now]


def test_a_run_that_was_lost_and_then_killed_is_one_lost_run(key: OneKey) -> None:
    key.passes(TTL)
    key.reap()

    key.leave(queued("a"), Outcome.ABANDONED)

    assert dict(key.state.lost) == {"a": 1}


def test_a_duplicate_that_ends_takes_no_message_from_the_one_that_runs() -> None:
    key = OneKey()
    key.enter(queued("a", keep=True))

    key.leave(queued("a", "copy"), Outcome.OVER)

    key.passes(TTL)
    key.reap()
    assert key.wakes == ["a"]


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


# A message that is kept while its task runs.


def test_who_asks_again_after_a_lost_reply_keeps_one_message(running_kept: OneKey) -> None:
    assert running_kept.enter(kept("a")) == Run(slot=0, token=1)

    assert (running_kept.waiting, running_kept.state.parked) == (["a"], 1)


def test_who_is_woken_keeps_its_message_at_the_head_since_now(running_kept: OneKey) -> None:
    key = running_kept
    key.enter(kept("b"))
    key.enter(queued("c"))
    key.leave(kept("a"))
    key.passes(1)

    key.enter(kept("b", "woken"))

    assert (key.running, key.waiting, key.woken) == (["b"], ["b", "c"], [])
    assert key.state.waiting[0].arrived == key.now


def test_who_had_a_place_keeps_its_message_instead() -> None:
    key = OneKey()
    key.enter(claim("a"))
    key.enter(place("b"))
    key.leave(claim("a"))

    key.enter(kept("b", "back"))

    assert (key.running, key.waiting, key.state.parked) == (["b"], ["b"], 1)


@pytest.mark.parametrize(
    ("outcome", "woken"), [(Outcome.REPEAT, ["a"]), (Outcome.DONE, [])], ids=["again", "done"]
)
def test_whoever_leaves_after_its_lease_was_lost_has_its_message_only_once(
    running_kept: OneKey, outcome: Outcome, woken: list[str]
) -> None:
    running_kept.passes(TTL)
    running_kept.reap()

    assert running_kept.leave(kept("a"), outcome) == NotHeld(carried=True)

    assert (running_kept.woken, running_kept.waiting) == (woken, [])


def test_two_runs_that_are_lost_at_once_are_both_woken() -> None:
    key = OneKey()
    for task in "ab":
        key.enter(kept(task, limit=2))
    key.enter(queued("c", limit=2))
    key.passes(TTL)

    key.reap()

    assert sorted(key.wakes) == ["a", "b"]
    assert key.waiting == ["c"]


def test_it_reserves_nothing_for_a_place_behind_it(running_kept: OneKey) -> None:
    running_kept.enter(place("b"))

    running_kept.leave(kept("a"))

    assert running_kept.woken == []
    assert isinstance(running_kept.enter(claim("c")), Run)


def test_the_duplicate_of_a_run_that_outlasts_its_patience_is_woken_to_run_again() -> None:
    key = OneKey()
    key.enter(queued("a", ttl=2 * PATIENCE))
    key.enter(queued("a", "copy", gives_up=PATIENCE))
    key.passes(2 * PATIENCE)

    key.reap()

    assert (key.wakes, key.endings) == (["a"], {})


def test_of_a_key_with_many_slots_as_many_run_as_entries_are_loaded_and_nobody_is_stuck() -> None:
    store = MemoryBackend(BackendOptions(clock=ManualClock()))
    arriving = [f"{number}" for number in range(4 * WINDOW)]
    running: list[str] = []
    while arriving or running:
        for task in arriving:
            if store.enter(kept(task, limit=2 * WINDOW), b"message").verdict == Park():
                continue
            running.append(task)
        waits = store.peek("key").parked > len(running)
        assert len(running) >= WINDOW or not waits
        reply = store.leave(kept(running.pop(0), limit=2 * WINDOW), Outcome.DONE)
        arriving = [wake.task for wake in reply.wakes]

    assert store.peek("key").waiting == ()


# A message that goes back to the head is the only thing its task has there.


def test_it_outlives_the_place_that_another_delivery_of_its_task_had(key: OneKey) -> None:
    key.enter(place("b", patience=TTL // 2))
    key.leave(queued("b", "lost its lease"), Outcome.REPEAT)
    key.passes(TTL // 2)

    key.leave(queued("a"), Outcome.OVER)

    assert (key.wakes, key.waiting) == (["b"], [])


# Whose run counts as lost.


@pytest.mark.parametrize(
    "turn",
    [
        Grant("b", Mode.EXCLUSIVE, 1, True, 1, START + TTL, Ending.TIMED_OUT),
        Grant("b", Mode.EXCLUSIVE, 1, False, 0, START + TTL, Ending.DROPPED, by="c"),
    ],
    ids=["it timed out", "it gave way"],
)
def test_a_lost_run_counts_whatever_another_task_has_come_to(key: OneKey, turn: Grant) -> None:
    key.state = replace(key.state, grants=(turn,))

    key.leave(queued("a"), Outcome.REPEAT)

    assert key.state.lost == (("a", 1),)
    assert "a" in (*key.woken, *key.waiting)


@pytest.mark.parametrize("outcome", [Outcome.REPEAT, Outcome.UNUSED, Outcome.ABANDONED])
def test_who_holds_nothing_loses_no_run(key: OneKey, outcome: Outcome) -> None:
    key.leave(queued("b", "gone"), outcome)

    assert key.state.lost == ()


def test_a_duplicate_that_waits_behind_its_run_hears_who_runs(key: OneKey) -> None:
    verdict = key.enter(queued("a", "copy"))

    assert isinstance(verdict, Park)
    assert verdict.holder == key.state.holders[0]
