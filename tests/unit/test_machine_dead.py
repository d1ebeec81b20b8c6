"""Dead and replayed: a message of no use to anybody waits for a person, out of the queue."""

from __future__ import annotations

import pytest

from celery_dlock.core.machine import MAX_LOST_RUNS
from celery_dlock.core.state import (
    Cause,
    Dead,
    Drop,
    End,
    Ending,
    Left,
    Mode,
    Outcome,
    Park,
    Reason,
    Run,
    WaitMode,
)
from celery_dlock.core.turns import WAKE_AGAIN_LAST
from celery_dlock.core.upkeep import WAKES_BEFORE_DEAD
from tests.unit.one_key import PATIENCE, TTL, OneKey, claim, kept, place, queued

LONG = 100 * WAKE_AGAIN_LAST


@pytest.fixture
def key() -> OneKey:
    """A key that a holds for long, and for which b and c wait."""
    key = OneKey()
    key.enter(queued("a", ttl=LONG))
    key.enter(queued("b"))
    key.enter(queued("c"))
    return key


# Putting aside.


def test_a_message_is_dead_lettered_after_enough_wakes_and_the_next_is_woken(key: OneKey) -> None:
    key.leave(queued("a"))

    for _ in range(WAKES_BEFORE_DEAD - 1):
        assert not key.dead_letter("b")
        _call_again(key)
        assert key.wakes == ["b"]

    assert key.dead_letter("b", Cause.UNKNOWN_TASK)
    assert key.dead == {"b": Dead("b", Mode.EXCLUSIVE, 1, Cause.UNKNOWN_TASK, key.now)}
    assert (key.woken, key.wakes, key.waiting) == (["c"], ["c"], [])


def test_a_message_is_dead_lettered_once(key: OneKey) -> None:
    _die_unread(key, "b")
    after, dead = key.state, dict(key.dead)
    key.passes(1)

    assert not key.dead_letter("b")

    assert (key.state, key.dead) == (after, dead)


@pytest.mark.parametrize("task", ["a", "b", "p", "unknown"])
def test_only_who_was_woken_is_dead_lettered(key: OneKey, task: str) -> None:
    key.enter(place("p"))

    assert not key.dead_letter(task)

    assert key.dead == {}
    assert key.waiting == ["b", "c", "p"]


def test_an_ending_that_nobody_can_read_is_dead_lettered_too(key: OneKey) -> None:
    key.cancel("b")
    for _ in range(WAKES_BEFORE_DEAD - 1):
        _call_again(key)

    assert key.dead_letter("b")

    assert key.woken == []


def test_a_task_whose_runs_are_lost_again_and_again_is_dead_lettered() -> None:
    key = OneKey()
    for n in range(MAX_LOST_RUNS):
        assert isinstance(key.enter(kept("a", str(n))), Run)
        key.leave(kept("a", str(n)), Outcome.ABANDONED)
        assert key.wakes == ["a"]
    key.enter(queued("b"))

    assert key.enter(kept("a", "once more")) == Drop(Reason.DEAD)

    assert key.dead == {"a": Dead("a", Mode.EXCLUSIVE, 1, Cause.RUNS_LOST, key.now)}
    assert (key.woken, key.wakes) == (["b"], ["b"])


def test_it_does_not_matter_how_its_runs_were_lost() -> None:
    key = OneKey()
    for n in range(MAX_LOST_RUNS):
        assert isinstance(key.enter(queued("a", str(n))), Run)
        key.passes(TTL)

    assert key.enter(queued("a", "once more")) == Drop(Reason.DEAD)
    assert key.enter(queued("a", "and another")) == Drop(Reason.DEAD)


@pytest.mark.parametrize("wait", [WaitMode.QUEUE, WaitMode.LOOK])
@pytest.mark.parametrize("keep", [False, True])
def test_a_body_that_gives_its_lock_up_again_and_again_is_dead_lettered(
    wait: WaitMode, keep: bool
) -> None:
    key = OneKey()
    for n in range(MAX_LOST_RUNS):
        mine = claim("a", str(n), wait=wait, keep=keep)
        assert isinstance(key.enter(mine), Run)
        assert key.leave(mine, Outcome.REPEAT) == Left(carried=True)
        assert key.wakes == ["a"]

    assert key.enter(queued("a", "once more")) == Drop(Reason.DEAD)


def test_a_task_that_says_first_that_it_waits_is_dead_lettered_as_well() -> None:
    key = _lost_too_often()

    assert key.enter(claim("a", "look", wait=WaitMode.LOOK)) == Drop(Reason.DEAD)


def test_a_task_that_does_not_leave_its_message_is_not_dead_lettered() -> None:
    key = _lost_too_often()

    assert isinstance(key.enter(claim("a", "once more")), Run)


def test_a_task_that_was_woken_to_end_is_ended_and_not_dead_lettered() -> None:
    key = OneKey()
    for n in range(MAX_LOST_RUNS):
        key.enter(kept("a", str(n)))
        key.leave(kept("a", str(n)), Outcome.ABANDONED)
    assert key.cancel("a")

    assert key.enter(kept("a", "once more")) == End(Ending.REVOKED)


def test_the_copy_of_a_running_task_is_not_dead_lettered() -> None:
    key = _lost_too_often()
    key.enter(claim("a", "once more"))  # by a worker whose version leaves no message

    assert key.enter(queued("a", "copy")) == Park()


def test_a_task_that_finished_in_between_is_not_dead_lettered() -> None:
    key = OneKey()
    for n in range(2 * MAX_LOST_RUNS):
        mine = queued("a", str(n), done_ttl=0)
        assert isinstance(key.enter(mine), Run)
        key.leave(mine, Outcome.DONE if n % 5 == 0 else Outcome.ABANDONED)


# Replaying.


def test_a_dead_message_waits_again_behind_the_others(key: OneKey) -> None:
    _die_unread(key, "b")
    key.enter(queued("d"))

    assert key.replay("b")

    assert (key.woken, key.waiting) == (["c"], ["d", "b"])
    assert key.state.waiting[-1].arrived == key.now
    assert key.state.parked == 2


def test_a_dead_message_is_woken_at_once_on_a_free_key() -> None:
    key = _lost_too_often()
    key.enter(queued("a", "once more"))

    assert key.replay("a")

    assert key.wakes == ["a"]
    assert isinstance(key.enter(queued("a", "woken")), Run)


def test_runs_that_were_lost_before_are_forgotten_at_a_replay() -> None:
    key = _lost_too_often()

    assert not key.replay("a")

    assert key.state.lost == ()
    assert isinstance(key.enter(queued("a", "again")), Run)


def test_what_is_done_runs_again_once_it_is_replayed(key: OneKey) -> None:
    key.leave(queued("a"))
    key.enter(queued("b", "woken"))
    key.leave(queued("b", "woken"))
    assert key.enter(queued("a", "again")) == Drop(Reason.DONE)

    assert not key.replay("a")

    assert key.enter(queued("a", "again")) == Park()
    assert key.waiting == ["a"]


@pytest.mark.parametrize("task", ["a", "b", "unknown"])
def test_replaying_what_runs_or_waits_changes_nothing(key: OneKey, task: str) -> None:
    after = key.state

    assert not key.replay(task)

    assert (key.state, key.wakes) == (after, [])


def test_a_dead_message_that_waits_again_already_stays_where_it_is(key: OneKey) -> None:
    # Given b, dead, And the broker's copy of it, which came since
    _die_unread(key, "b")
    assert key.enter(queued("b", "redelivered")) == Park()
    key.enter(queued("d"))

    assert key.replay("b")

    assert (key.waiting, key.state.parked) == (["b", "d"], 2)


def test_a_dead_message_takes_the_place_of_a_place_of_its_task(key: OneKey) -> None:
    _die_unread(key, "b")
    key.enter(place("b", "another delivery"))

    assert key.replay("b")

    assert (key.waiting, key.state.parked) == (["b"], 1)


def test_a_replayed_message_does_not_give_up() -> None:
    key = _lost_too_often(gives_up=PATIENCE)
    key.enter(queued("a", "once more", gives_up=PATIENCE))
    key.enter(claim("b", ttl=LONG))
    key.replay("a")
    key.passes(LONG - 1)

    key.reap()

    assert (key.waiting, key.endings) == (["a"], {})


def _call_again(key: OneKey) -> None:
    key.passes(WAKE_AGAIN_LAST)
    key.reap()


def _die_unread(key: OneKey, task: str) -> None:
    """*task*, the next, is woken until it is dead-lettered."""
    key.leave(queued("a"))
    for _ in range(WAKES_BEFORE_DEAD - 1):
        _call_again(key)
    assert key.dead_letter(task)


def _lost_too_often(**options: int) -> OneKey:
    key = OneKey()
    for n in range(MAX_LOST_RUNS):
        key.enter(queued("a", str(n), **options))
        key.leave(queued("a", str(n)), Outcome.ABANDONED)
    return key
