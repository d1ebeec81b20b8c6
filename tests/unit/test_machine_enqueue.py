"""Order as published: a publisher leaves a message in the queue, and never takes the key."""

from __future__ import annotations

import pytest

from celery_dlock.core.state import Busy, Drop, End, Ending, Mode, Outcome, Park, Reason, Run
from tests.unit.one_key import PATIENCE, START, TTL, OneKey, claim, kept, place, published, queued

LONG = 10 * TTL


@pytest.fixture
def key() -> OneKey:
    return OneKey()


def test_on_a_free_key_it_is_woken_at_once_and_holds_nothing(key: OneKey) -> None:
    assert key.enter(published("a")) == Park()

    assert (key.wakes, key.woken, key.running) == (["a"], ["a"], [])
    assert key.enter(queued("a", "woken")) == Run(slot=0, token=2)


def test_behind_a_wake_it_waits_for_its_turn(key: OneKey) -> None:
    key.enter(published("a"))

    assert key.enter(published("b")) == Park()

    assert (key.wakes, key.woken, key.waiting) == ([], ["a"], ["b"])


def test_behind_a_holder_it_waits_for_its_turn(key: OneKey) -> None:
    key.enter(claim("a"))

    assert key.enter(published("b")) == Park()

    assert (key.wakes, key.waiting) == ([], ["b"])
    key.leave(claim("a"))
    assert key.wakes == ["b"]


def test_the_order_is_that_of_publishing_and_not_of_arrival(key: OneKey) -> None:
    for task in "abc":
        key.enter(published(task))

    order = []
    for task in "abc":
        order += key.woken
        assert isinstance(key.enter(queued(task, "woken")), Run)
        key.leave(queued(task, "woken"))

    assert order == ["a", "b", "c"]


def test_it_does_not_overtake_who_came_by_a_worker(key: OneKey) -> None:
    key.enter(queued("a"))
    key.enter(queued("b"))
    key.enter(published("c"))

    assert key.waiting == ["b", "c"]


def test_as_many_are_woken_as_there_are_slots(key: OneKey) -> None:
    wakes = []
    for task in "abc":
        key.enter(published(task, limit=2))
        wakes += key.wakes

    assert wakes == ["a", "b"]
    assert key.waiting == ["c"]


def test_readers_are_woken_together_and_a_writer_after_them(key: OneKey) -> None:
    wakes = []
    for task, mode in (("r", Mode.SHARED), ("s", Mode.SHARED), ("w", Mode.EXCLUSIVE)):
        key.enter(published(task, mode=mode))
        wakes += key.wakes

    assert wakes == ["r", "s"]
    assert key.waiting == ["w"]


def test_publishing_twice_what_waits_is_a_duplicate(key: OneKey) -> None:
    key.enter(claim("a"))
    key.enter(published("b", "one"))

    assert key.enter(published("b", "two")) == Drop(Reason.WAITING)

    assert (key.waiting, key.state.parked) == (["b"], 1)


def test_publishing_twice_what_was_woken_is_a_duplicate_and_takes_no_turn(key: OneKey) -> None:
    key.enter(published("a", "one"))

    assert key.enter(published("a", "two")) == Drop(Reason.WAITING)

    assert (key.woken, key.running) == (["a"], [])


def test_publishing_what_is_woken_to_end_does_not_end_it(key: OneKey) -> None:
    key.enter(claim("a", ttl=LONG))
    key.enter(published("b", gives_up=TTL))
    key.passes(TTL)
    key.reap()
    assert key.endings == {"b": Ending.TIMED_OUT}

    assert key.enter(published("b", "two")) == Drop(Reason.WAITING)

    assert key.enter(queued("b", "woken")) == End(Ending.TIMED_OUT)


def test_publishing_what_is_done_is_a_duplicate(key: OneKey) -> None:
    key.enter(published("a"))
    key.enter(queued("a", "woken"))
    key.leave(queued("a", "woken"), Outcome.DONE)

    assert key.enter(published("a", "again")) == Drop(Reason.DONE)

    assert (key.woken, key.waiting) == ([], [])


def test_publishing_what_runs_leaves_its_shadow(key: OneKey) -> None:
    key.enter(queued("a"))

    assert key.enter(published("a")) == Park()

    assert (key.running, key.waiting, key.wakes) == (["a"], ["a"], [])
    key.leave(queued("a"))
    assert (key.woken, key.waiting) == ([], [])


def test_publishing_what_runs_and_is_kept_is_a_duplicate(key: OneKey) -> None:
    key.enter(kept("a"))

    assert key.enter(published("a")) == Drop(Reason.WAITING)


def test_a_place_becomes_a_message_in_its_rank(key: OneKey) -> None:
    key.enter(claim("a"))
    key.enter(place("b"))
    key.enter(place("c"))

    assert key.enter(published("b")) == Park()

    assert (key.waiting, key.state.parked) == (["b", "c"], 1)


def test_a_reserved_place_becomes_a_message_that_is_woken(key: OneKey) -> None:
    # Given b, for which the key is reserved, And c behind it
    key.enter(claim("a"))
    key.enter(place("b"))
    key.enter(queued("c"))
    key.leave(claim("a"))
    assert (key.woken, key.wakes) == (["b"], [])

    assert key.enter(published("b")) == Park()

    assert (key.woken, key.wakes, key.waiting) == (["b"], ["b"], ["c"])
    assert key.state.parked == 1


def test_a_place_reserved_under_a_larger_limit_becomes_a_message_at_the_head(key: OneKey) -> None:
    # Given b, for whom the second slot is reserved since c is parked
    for mine in (queued("a", limit=2), queued("x", limit=2), place("b", limit=2), queued("c")):
        key.enter(mine)
    key.leave(queued("x", limit=2))
    assert key.woken == ["b"]
    key.passes(1)

    assert key.enter(published("b", limit=1)) == Park()

    assert (key.waiting, key.woken, key.state.parked) == (["b", "c"], [], 2)
    assert key.state.waiting[0].arrived == START


def test_it_does_not_start_where_its_last_run_was_lost(key: OneKey) -> None:
    key.enter(claim("a"))
    key.passes(TTL)

    assert key.enter(published("a")) == Park()

    assert (key.running, key.wakes) == ([], ["a"])


def test_who_had_started_is_put_before_the_others(key: OneKey) -> None:
    key.enter(queued("a"))
    key.enter(queued("b"))
    key.enter(queued("c"))
    key.passes(TTL)
    key.reap()

    key.enter(published("a"))

    assert (key.woken, key.waiting) == (["b"], ["a", "c"])


def test_one_more_than_may_wait_is_told_that_it_is_full(key: OneKey) -> None:
    key.enter(published("a", max_waiting=1))
    assert key.enter(published("b", max_waiting=1)) == Park()

    full = key.enter(published("c", max_waiting=1))

    assert full == Busy(holder=None, left=0, parked=1, full=True)
    assert key.waiting == ["b"]


def test_the_first_that_waits_makes_room(key: OneKey) -> None:
    for task in "abc":
        assert key.enter(published(task, max_waiting=1, drop_oldest=True)) == Park()

    assert key.endings == {"b": Ending.DROPPED}
    assert (key.woken, key.waiting) == (["a", "b"], ["c"])


def test_who_was_woken_does_not_count_as_waiting(key: OneKey) -> None:
    key.enter(published("a", max_waiting=1))

    assert key.enter(published("b", max_waiting=1)) == Park()


def test_it_gives_up_like_any_other(key: OneKey) -> None:
    key.enter(claim("a", ttl=LONG))
    key.enter(published("b", gives_up=PATIENCE))
    assert key.due_in() == PATIENCE
    key.passes(PATIENCE)

    key.reap()

    assert key.endings == {"b": Ending.TIMED_OUT}


def test_a_wake_that_nobody_answers_is_repeated(key: OneKey) -> None:
    key.enter(published("a"))
    due = key.due_in()
    assert due is not None
    key.passes(due)

    key.reap()

    assert key.wakes == ["a"]
