"""Waiting in the store: first come, first woken, and nobody is forgotten."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_dlock.core import turns
from celery_dlock.core.state import (
    STRANGER_RESERVED,
    WINDOW,
    Busy,
    Drop,
    KeyState,
    Park,
    Reason,
    Run,
)
from celery_dlock.core.turns import WAKE_AGAIN_FIRST, WAKE_AGAIN_LAST
from celery_dlock.core.upkeep import WAKE_ELSEWHERE
from tests.unit.one_key import TTL, OneKey, claim, queued


@pytest.fixture
def key() -> OneKey:
    """A key that a holds."""
    key = OneKey()
    key.enter(queued("a"))
    return key


def test_who_queues_is_parked_behind_the_holder(key: OneKey) -> None:
    assert key.enter(queued("b")) == Park()

    assert key.waiting == ["b"]
    assert key.state.parked == 1
    assert key.wakes == []


def test_leaving_wakes_the_first_who_came(key: OneKey) -> None:
    key.enter(queued("b"))
    key.enter(queued("c"))

    key.leave(queued("a"))

    assert key.wakes == ["b"]
    assert key.woken == ["b"]
    assert key.waiting == ["c"]


def test_who_is_woken_runs_with_a_new_token(key: OneKey) -> None:
    key.enter(queued("b"))
    key.leave(queued("a"))

    assert key.enter(queued("b", "woken")) == Run(slot=0, token=3)

    assert key.woken == []


def test_a_wake_reserves_the_key_against_newcomers(key: OneKey) -> None:
    # Given b, which was woken and has not come yet
    key.enter(queued("b"))
    key.leave(queued("a"))

    # When others find nobody in the key
    # Then the one that queues is parked, And the one that does not is refused for nobody's sake
    assert key.enter(queued("c")) == Park()
    assert key.enter(claim("d")) == Busy(holder=None, left=0, parked=1)


def test_a_redelivered_copy_of_what_waits_is_dropped(key: OneKey) -> None:
    key.enter(queued("b", "first"))

    assert key.enter(queued("b", "second")) == Drop(Reason.WAITING)

    assert key.waiting == ["b"]


def test_a_wake_that_comes_twice_runs_once(key: OneKey) -> None:
    # Given b, which was woken twice and runs
    key.enter(queued("b"))
    key.leave(queued("a"))
    key.enter(queued("b", "one"))

    # When the second call arrives, Then it waits behind the first
    assert key.enter(queued("b", "two")) == Park()

    # And is gone when that one is done
    key.leave(queued("b", "one"))
    assert (key.waiting, key.woken, key.wakes) == ([], [], [])


def test_what_is_done_is_dropped(key: OneKey) -> None:
    key.leave(queued("a"))

    assert key.enter(queued("a", "again")) == Drop(Reason.DONE)


def test_what_is_not_to_be_remembered_may_run_again(key: OneKey) -> None:
    forgetful = queued("x", done_ttl=0)
    key.leave(queued("a"))
    key.enter(forgetful)
    key.leave(forgetful)

    assert isinstance(key.enter(queued("x", "again")), Run)


def test_the_copy_of_a_running_task_is_kept_at_the_head(key: OneKey) -> None:
    key.enter(queued("b"))

    assert key.enter(queued("a", "copy")) == Park()

    assert key.waiting == ["a", "b"]


def test_the_copy_runs_next_when_the_first_one_has_died(key: OneKey) -> None:
    key.enter(queued("b"))
    key.enter(queued("a", "copy"))
    key.passes(TTL)

    key.reap()

    assert key.wakes == ["a"]


def test_the_copy_is_neither_woken_into_a_second_slot_nor_in_the_way_of_another() -> None:
    # Given two slots, And the only holder has a copy in the queue
    key = OneKey()
    key.enter(queued("a", limit=2))
    key.enter(queued("a", "copy", limit=2))
    assert key.wakes == []

    # When another comes, Then it runs past the copy
    key.enter(queued("b", limit=2))

    assert key.running == ["a", "b"]
    assert key.wakes == []
    assert key.waiting == ["a"]


def test_who_had_started_before_its_worker_died_does_not_queue_again(key: OneKey) -> None:
    # Given a that died, And b that waits
    key.enter(queued("b"))
    key.passes(TTL)

    # When the broker delivers a once more, Then it is still a's turn
    assert isinstance(key.enter(queued("a", "redelivered")), Run)
    assert key.waiting == ["b"]


def test_who_had_started_waits_at_the_head_when_the_key_is_taken(key: OneKey) -> None:
    # Given a that died, b that was woken for it and runs, And c that waits
    key.enter(queued("b"))
    key.enter(queued("c"))
    key.passes(TTL)
    key.reap()
    key.enter(queued("b", "woken"))

    assert key.enter(queued("a", "redelivered")) == Park()

    assert key.waiting == ["a", "c"]


def test_whatever_releases_the_key_wakes_the_next(key: OneKey) -> None:
    # Given b that waits for a, whose lease ends
    key.enter(queued("b"))
    key.passes(TTL)

    # When anybody asks, Then b is woken, not the one who asked
    assert key.enter(queued("c")) == Park()
    assert key.wakes == ["b"]


def test_an_unanswered_wake_is_repeated_at_growing_intervals_for_ever(key: OneKey) -> None:
    key.enter(queued("b"))
    key.leave(queued("a"))
    waits: list[int] = []

    for _ in range(30):
        due = key.state.grants[0].due
        waits.append(due - key.now)
        key.now = due - 1
        key.reap()
        assert key.wakes == []
        key.now = due
        key.reap()
        assert key.wakes == ["b"]

    assert waits[:3] == [WAKE_AGAIN_FIRST, 2 * WAKE_AGAIN_FIRST, 4 * WAKE_AGAIN_FIRST]
    assert waits[-1] == WAKE_AGAIN_LAST


def test_as_many_are_woken_as_there_are_slots() -> None:
    # Given three slots that are taken, And four that wait
    key = OneKey()
    for task in "abc":
        key.enter(queued(task, limit=3))
    for task in "wxyz":
        key.enter(queued(task, limit=3))

    # When two holders die at once
    key.renew(queued("a", limit=3, ttl=2 * TTL))
    key.passes(TTL)
    key.reap()

    assert key.wakes == ["w", "x"]


def test_only_the_loaded_part_of_a_long_queue_is_woken_from() -> None:
    # Given more slots than entries are loaded, all taken by tasks that die
    many = 2 * WINDOW
    key = OneKey()
    for n in range(many):
        key.enter(queued(f"h{n}", limit=many))
    for n in range(many):
        key.enter(queued(f"w{n}", limit=many))
    key.passes(TTL)

    key.reap()
    assert len(key.wakes) == WINDOW

    key.reap()
    assert len(key.wakes) == many - WINDOW


def test_what_is_handed_back_was_not_woken_and_is_woken_elsewhere_soon(key: OneKey) -> None:
    key.enter(queued("b"))
    key.leave(queued("a"))
    key.passes(WAKE_AGAIN_FIRST)
    key.reap()
    (turn,) = key.state.grants
    assert turn.woken == 2
    key.passes(1)

    assert key.hand_back("b") is True

    again = key.now + WAKE_ELSEWHERE
    assert key.state.grants == (replace(turn, woken=1, handed_back=key.now, due=again),)


@pytest.mark.parametrize(
    ("after", "wait"),
    [(STRANGER_RESERVED - 1, WAKE_ELSEWHERE), (STRANGER_RESERVED, WAKE_AGAIN_FIRST)],
)
def test_what_is_handed_back_for_long_is_woken_less_often(
    key: OneKey, after: int, wait: int
) -> None:
    key.enter(queued("b"))
    key.leave(queued("a"))
    key.hand_back("b")
    key.passes(after)

    key.hand_back("b")

    assert [turn.due - key.now for turn in key.state.grants if not turn.woken] == [wait]


def test_only_who_was_woken_is_handed_back() -> None:
    key = OneKey()
    for task in "abcd":
        key.enter(queued(task, limit=2))
    key.leave(queued("a", limit=2))
    key.leave(queued("b", limit=2))
    before = key.state
    first, second = before.grants

    assert key.hand_back("nobody") is False
    assert key.state == before
    assert key.hand_back("d") is True
    assert key.state.grants[0] == first
    assert key.state.grants[1].handed_back == key.now != second.handed_back


def test_a_key_with_messages_and_nothing_to_wait_for_is_due_at_once() -> None:
    assert turns.due(KeyState(parked=1)) == 0
