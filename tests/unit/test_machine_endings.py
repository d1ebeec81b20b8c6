"""Called although it is not its turn: a message that waited too long, or had to make room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_dlock.core.state import (
    WINDOW,
    Busy,
    Drop,
    End,
    Ending,
    Left,
    NotHeld,
    Outcome,
    Park,
    Reason,
    Run,
)
from celery_dlock.core.turns import WAKE_AGAIN_FIRST
from tests.unit.one_key import TTL, OneKey, place, queued

LONG = 10 * TTL
MINUTE = 60_000_000


@pytest.fixture
def key() -> OneKey:
    """A key that a holds for long."""
    key = OneKey()
    key.enter(queued("a", ttl=LONG))
    return key


def test_who_waited_for_long_enough_is_woken_to_end(key: OneKey) -> None:
    key.enter(queued("b", gives_up=MINUTE))
    key.enter(queued("c"))
    key.passes(MINUTE - 1)
    key.reap()
    assert key.endings == {}

    key.passes(1)
    key.reap()

    assert key.endings == {"b": Ending.TIMED_OUT}
    assert key.waiting == ["c"]
    assert key.state.parked == 1


def test_one_that_gets_more_time_waits_as_the_first_for_so_long_and_no_longer(key: OneKey) -> None:
    key.enter(queued("b", gives_up=MINUTE))
    key.enter(queued("c"))
    key.passes(MINUTE)
    key.reap()
    assert key.enter(queued("b", "late", gives_up=MINUTE, more_time=5)) == Park()
    assert key.waiting == ["b", "c"]
    assert key.state.waiting[0].arrived == key.now - MINUTE
    assert key.endings == {}

    key.passes(4)
    key.reap()
    assert key.endings == {}
    key.passes(1)
    key.reap()

    assert key.endings == {"b": Ending.TIMED_OUT}


def test_only_the_delivery_that_ends_it_gets_more_time_and_only_if_its_time_was_up(
    key: OneKey,
) -> None:
    key.enter(queued("b", gives_up=MINUTE))
    key.passes(MINUTE)
    key.reap()
    assert key.enter(queued("b", "first", gives_up=MINUTE)) == End(Ending.TIMED_OUT)

    assert key.enter(queued("b", "other", more_time=5)) == Drop(Reason.WAITING)

    key.enter(queued("c"))
    key.cancel("c")
    assert key.enter(queued("c", more_time=5)) == End(Ending.REVOKED)


def test_any_operation_notices_it(key: OneKey) -> None:
    key.enter(queued("b", gives_up=MINUTE))
    key.passes(MINUTE)

    key.enter(queued("c"))

    assert key.endings == {"b": Ending.TIMED_OUT}


def test_the_time_of_its_turn_and_the_end_of_its_patience_at_once_is_an_end(key: OneKey) -> None:
    key.enter(queued("b", gives_up=MINUTE))
    key.passes(MINUTE)

    key.leave(queued("a"))

    assert key.endings == {"b": Ending.TIMED_OUT}


def test_a_woken_task_is_not_woken_to_end_any_more(key: OneKey) -> None:
    key.enter(queued("b", gives_up=MINUTE))
    key.leave(queued("a"))
    key.passes(MINUTE)

    key.reap()

    assert (key.wakes, key.endings) == (["b"], {})
    assert isinstance(key.enter(queued("b")), Run)


def test_a_task_that_was_woken_once_in_vain_ends_with_its_patience(key: OneKey) -> None:
    key.enter(queued("b", gives_up=WAKE_AGAIN_FIRST))
    key.leave(queued("a"))
    assert key.endings == {}
    key.passes(WAKE_AGAIN_FIRST)

    key.reap()

    assert key.endings == {"b": Ending.TIMED_OUT}


def test_its_patience_ends_later_by_what_nobody_was_there(key: OneKey) -> None:
    key.enter(queued("b", gives_up=MINUTE))
    key.state = replace(key.state, paused=LONG)
    key.leave(queued("a"))

    for wait in (WAKE_AGAIN_FIRST, 2 * WAKE_AGAIN_FIRST, 4 * WAKE_AGAIN_FIRST):
        assert key.due_in() == wait
        key.passes(wait)
        key.reap()


def test_an_ending_that_is_brought_about_is_not_handed_back(key: OneKey) -> None:
    _time_out(key, "b")
    key.enter(queued("b", "one"))
    before = key.state

    assert key.hand_back("b") is True

    assert key.state == before


def test_an_ending_reserves_nothing(key: OneKey) -> None:
    key.enter(queued("b", gives_up=MINUTE))
    key.passes(MINUTE)
    key.leave(queued("a"))

    assert isinstance(key.enter(queued("c")), Run)


def test_one_delivery_brings_the_ending_about_and_others_are_dropped(key: OneKey) -> None:
    _time_out(key, "b")

    assert key.enter(queued("b", "one")) == End(Ending.TIMED_OUT)
    assert key.enter(queued("b", "two")) == Drop(Reason.WAITING)
    assert key.enter(queued("b", "one")) == End(Ending.TIMED_OUT)


def test_an_ending_that_is_brought_about_is_over(key: OneKey) -> None:
    _time_out(key, "b")
    key.enter(queued("b", "one"))

    assert key.leave(queued("b", "one")) == NotHeld(carried=True)

    assert key.woken == []
    assert key.due_in() is None
    assert key.enter(queued("b", "late")) == Drop(Reason.DONE)


def test_an_ending_whose_taker_does_not_conclude_is_woken_again(key: OneKey) -> None:
    _time_out(key, "b")
    key.enter(queued("b", "one", ttl=TTL))
    key.passes(TTL - 1)
    key.reap()
    assert key.wakes == []

    key.passes(1)
    key.reap()

    assert key.endings == {"b": Ending.TIMED_OUT}
    assert key.enter(queued("b", "two")) == End(Ending.TIMED_OUT)
    assert key.enter(queued("b", "one")) == Drop(Reason.WAITING)


def test_an_ending_that_nobody_takes_is_woken_again_and_again(key: OneKey) -> None:
    _time_out(key, "b")

    for wait in (WAKE_AGAIN_FIRST, 2 * WAKE_AGAIN_FIRST, 4 * WAKE_AGAIN_FIRST):
        key.passes(wait)
        key.reap()
        assert key.endings == {"b": Ending.TIMED_OUT}


def test_the_duplicate_of_a_running_task_is_not_ended(key: OneKey) -> None:
    key.enter(queued("a", "copy", gives_up=MINUTE))
    key.passes(MINUTE)
    key.reap()
    assert (key.wakes, key.waiting) == ([], ["a"])

    # And the key is not due for its sake, or a sweeper would never rest
    assert key.due_in() == LONG - MINUTE


def test_a_place_is_never_ended(key: OneKey) -> None:
    key.enter(place("b", gives_up=MINUTE, patience=LONG))
    key.passes(MINUTE)
    key.reap()

    assert (key.wakes, key.waiting) == ([], ["b"])


def test_one_more_than_may_wait_is_told_that_it_is_full(key: OneKey) -> None:
    assert key.enter(queued("b", max_waiting=1)) == Park()

    verdict = key.enter(queued("c", max_waiting=1))

    assert isinstance(verdict, Busy)
    assert (verdict.full, verdict.parked) == (True, 1)
    assert key.waiting == ["b"]


def test_the_first_that_waits_makes_room(key: OneKey) -> None:
    for task in "bc":
        key.enter(queued(task, max_waiting=2, drop_oldest=True))

    assert key.enter(queued("d", max_waiting=2, drop_oldest=True)) == Park()

    assert key.endings == {"b": Ending.DROPPED}
    assert key.waiting == ["c", "d"]
    assert key.enter(queued("b", "woken")) == End(Ending.DROPPED)


def test_a_dropped_task_leaves_the_place_before_it_alone(key: OneKey) -> None:
    key.enter(place("p", patience=LONG))
    key.enter(queued("b", drop_oldest=True))

    key.enter(queued("c", max_waiting=1, drop_oldest=True))

    assert key.endings == {"b": Ending.DROPPED}
    assert key.waiting == ["p", "c"]


def test_the_copy_of_a_running_task_neither_counts_nor_makes_room(key: OneKey) -> None:
    key.enter(queued("a", "copy"))

    assert key.enter(queued("b", max_waiting=1, drop_oldest=True)) == Park()
    assert key.enter(queued("c", max_waiting=1, drop_oldest=True)) == Park()

    assert key.endings == {"b": Ending.DROPPED}
    assert key.waiting == ["a", "c"]


def test_who_had_started_is_taken_although_it_is_full() -> None:
    # Given a whose worker died, b that was woken for it and runs, And c that waits
    key = OneKey()
    key.enter(queued("a"))
    key.enter(queued("b"))
    key.passes(TTL)
    key.reap()
    key.enter(queued("b", "woken"))
    key.enter(queued("c"))

    assert key.enter(queued("a", "again", max_waiting=1, drop_oldest=True)) == Park()

    assert (key.endings, key.waiting) == ({}, ["a", "c"])


def test_who_is_woken_by_the_same_operation_has_made_room() -> None:
    # Given a whose worker died, And b that waits
    key = OneKey()
    key.enter(queued("a"))
    key.enter(queued("b"))
    key.passes(TTL)

    assert key.enter(queued("c", max_waiting=1)) == Park()

    assert (key.wakes, key.waiting) == (["b"], ["c"])


def test_a_full_queue_of_places_and_nobody_to_make_room_is_full(key: OneKey) -> None:
    for n in range(WINDOW):
        key.enter(place(f"p{n}", patience=LONG))
    key.enter(queued("b"))
    # As a store loads it: the message stands behind the window
    key.state = replace(key.state, waiting=key.state.waiting[:WINDOW])

    verdict = key.enter(queued("c", max_waiting=1, drop_oldest=True))

    assert isinstance(verdict, Busy)
    assert verdict.full


def test_a_key_is_due_when_something_is_to_be_done_without_anybody_coming(key: OneKey) -> None:
    assert key.due_in() is None
    key.enter(place("p", patience=LONG))
    assert key.due_in() is None

    # Behind a holder: when the holder is dead, or when patience ends
    key.enter(queued("b"))
    assert key.due_in() == LONG
    key.enter(queued("c", gives_up=MINUTE))
    assert key.due_in() == MINUTE

    # And when a turn was woken: when it is to be woken again
    key.enter(queued("p"))  # its place is a message now
    key.leave(queued("a"))
    assert key.woken == ["p"]
    assert key.due_in() == WAKE_AGAIN_FIRST


def test_a_turn_kept_for_a_place_is_due_when_the_place_lapses(key: OneKey) -> None:
    key.enter(place("p", patience=MINUTE))
    key.enter(queued("b"))
    key.leave(queued("a"))

    assert key.due_in() == MINUTE


def test_leaving_a_key_whose_endings_are_open_does_not_end_them(key: OneKey) -> None:
    _time_out(key, "b")

    assert key.leave(queued("a"), Outcome.OVER) == Left(carried=False)

    assert key.woken == ["b"]
    assert key.due_in() == WAKE_AGAIN_FIRST


def _time_out(key: OneKey, task: str) -> None:
    key.enter(queued(task, gives_up=MINUTE))
    key.passes(MINUTE)
    key.reap()
    assert key.endings == {task: Ending.TIMED_OUT}
