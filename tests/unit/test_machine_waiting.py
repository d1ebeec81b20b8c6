"""Who waits: in a queue, in a place, as published, or for a key that is reserved for a retry.

What a store shows as well is in the contract over memory; here is what only the rules can show.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from celery_dlock.core import turns
from celery_dlock.core.state import (
    STRANGER_RESERVED,
    WINDOW,
    Busy,
    Drop,
    End,
    Ending,
    Grant,
    KeyState,
    LeaveVerdict,
    Mode,
    NotHeld,
    Outcome,
    Park,
    Reason,
    Run,
    Same,
)
from celery_dlock.core.turns import WAKE_AGAIN_FIRST
from celery_dlock.core.upkeep import WAKE_ELSEWHERE
from tests.unit.one_key import (
    PATIENCE,
    START,
    TTL,
    OneKey,
    claim,
    kept,
    place,
    published,
    queued,
)

# The queue.


def test_who_had_started_before_its_worker_died_does_not_queue_again(key: OneKey) -> None:
    key.enter(queued("b"))
    key.passes(TTL)

    assert isinstance(key.enter(queued("a", "redelivered")), Run)

    assert key.waiting == ["b"]


def test_only_the_loaded_part_of_a_long_queue_is_woken_from() -> None:
    # Given more slots than entries are loaded, all taken by tasks that die
    many, key = 2 * WINDOW, OneKey()
    for name in [*(f"h{n}" for n in range(many)), *(f"w{n}" for n in range(many))]:
        key.enter(queued(name, limit=many))
    key.passes(TTL)

    for woken in (WINDOW, many - WINDOW):
        key.reap()
        assert len(key.wakes) == woken


def test_a_wake_that_comes_twice_runs_once(key: OneKey) -> None:
    key.enter(queued("b"))
    key.leave(queued("a"))
    key.enter(queued("b", "one"))

    assert key.enter(queued("b", "two")) == Park()

    key.leave(queued("b", "one"))
    assert (key.waiting, key.woken, key.wakes) == ([], [], [])


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
def test_what_is_handed_back_often_is_woken_less(key: OneKey, after: int, wait: int) -> None:
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
    for task in "ab":
        key.leave(queued(task, limit=2))
    before = key.state
    first, second = before.grants

    assert key.hand_back("nobody") is False
    assert key.state == before

    assert key.hand_back("d") is True
    assert key.state.grants[0] == first
    assert key.state.grants[1].handed_back == key.now != second.handed_back


def test_a_key_with_messages_and_nothing_to_wait_for_is_due_at_once() -> None:
    assert turns.due(KeyState(parked=1)) == 0


# Places.


def test_a_parked_message_stays_parked_for_one_who_no_longer_queues(key: OneKey) -> None:
    key.enter(queued("b"))

    assert key.enter(place("b", "copy")) == Drop(Reason.WAITING)

    assert key.state.parked == 1


def test_a_duplicate_of_what_runs_gets_no_place(key: OneKey) -> None:
    assert isinstance(key.enter(place("a", "copy")), Same)

    assert key.waiting == []


@pytest.mark.parametrize("second", [Mode.EXCLUSIVE, Mode.SHARED])
def test_a_reader_with_a_place_waits_for_nobody_later(key: OneKey, second: Mode) -> None:
    key.enter(place("r", mode=Mode.SHARED))
    key.enter(place("s", mode=second))
    key.leave(queued("a"))
    first_back = "r" if second is Mode.EXCLUSIVE else "s"

    assert isinstance(key.enter(place(first_back, "back", mode=Mode.SHARED)), Run)


def test_a_lost_run_gives_its_task_the_first_place(key: OneKey) -> None:
    key.passes(TTL)
    key.enter(place("b"))
    key.enter(place("c"))

    key.enter(place("a", "redelivered"))

    assert key.waiting == ["a", "c"]


# Order as published.


def test_publishing_what_is_woken_to_end_does_not_end_it(key: OneKey) -> None:
    key.renew(queued("a", ttl=10 * TTL))
    key.enter(published("b", gives_up=TTL))
    key.passes(TTL)
    key.reap()

    assert key.enter(published("b", "two")) == Drop(Reason.WAITING)

    assert key.enter(queued("b", "woken")) == End(Ending.TIMED_OUT)


def test_publishing_what_runs_and_is_kept_is_a_duplicate() -> None:
    key = OneKey()
    key.enter(kept("a"))

    assert key.enter(published("a")) == Drop(Reason.WAITING)


def test_a_place_reserved_under_a_larger_limit_becomes_a_message_at_the_head() -> None:
    key = OneKey()
    for mine in (queued("a", limit=2), queued("x", limit=2), place("b", limit=2), queued("c")):
        key.enter(mine)
    key.leave(queued("x", limit=2))
    assert key.woken == ["b"]
    key.passes(1)

    assert key.enter(published("b", limit=1)) == Park()

    assert (key.waiting, key.woken, key.state.parked) == (["b", "c"], [], 2)
    assert key.state.waiting[0].arrived == START


def test_who_had_started_and_is_published_is_put_before_the_others(key: OneKey) -> None:
    key.enter(queued("b"))
    key.enter(queued("c"))
    key.passes(TTL)
    key.reap()

    key.enter(published("a"))

    assert (key.woken, key.waiting) == (["b"], ["a", "c"])


# A key that is reserved for a retry.


def test_a_reservation_is_a_turn_of_the_retry_that_ends_with_its_patience(key: OneKey) -> None:
    key.enter(queued("b"))

    _retries(key)

    turn = Grant("a+1", Mode.EXCLUSIVE, 1, parked=False, woken=0, due=key.now + PATIENCE)
    assert (key.state.grants, key.wakes, key.waiting) == ((turn,), [], ["b"])


def test_a_retry_whose_message_is_kept_takes_it_too(key: OneKey) -> None:
    _retries(key)

    key.enter(kept("a+1"))

    assert (key.running, key.waiting) == (["a+1"], ["a+1"])


def test_leaving_twice_reserves_once(key: OneKey) -> None:
    _retries(key)
    after = key.state

    assert isinstance(_retries(key), NotHeld)

    assert key.state == after


def test_a_retry_under_another_limit_goes_to_the_head() -> None:
    key = OneKey()
    for task in "ab":
        key.enter(queued(task, limit=2))
    _retries(key, limit=2)
    key.enter(queued("c", limit=2))

    assert key.enter(queued("a+1", limit=1)) == Park()

    assert (key.woken, key.waiting) == ([], ["a+1", "c"])


def test_a_retry_that_is_woken_as_its_patience_ends_is_not_ended(key: OneKey) -> None:
    key.enter(queued("a+1", gives_up=PATIENCE))
    key.passes(PATIENCE)

    _retries(key)

    assert (key.wakes, key.endings) == (["a+1"], {})


def test_a_retry_that_runs_already_has_a_shadow_and_nothing_reserved() -> None:
    key = OneKey()
    for task in ("a", "a+1", "b"):
        key.enter(queued(task, limit=2))

    _retries(key, limit=2)

    assert (key.woken, key.wakes) == (["b"], ["b"])
    assert key.enter(queued("a+1", "copy", limit=2)) == Park()


def test_a_retry_that_was_woken_already_keeps_its_one_turn() -> None:
    key = OneKey()
    for task in ("a", "b", "a+1"):
        key.enter(queued(task, limit=2))
    key.leave(queued("b", limit=2))
    assert key.woken == ["a+1"]

    _retries(key, limit=2)

    assert key.woken == ["a+1"]


def test_a_retry_that_is_published_into_the_queue_is_woken_at_once(key: OneKey) -> None:
    key.enter(queued("b"))
    _retries(key)

    assert key.enter(published("a+1")) == Park()

    assert (key.wakes, key.woken, key.waiting) == (["a+1"], ["a+1"], ["b"])


def test_a_retry_that_ends_without_asking_releases_the_reservation(key: OneKey) -> None:
    key.enter(queued("b"))
    _retries(key)

    key.leave(queued("a+1"), Outcome.OVER)

    assert (key.woken, key.wakes) == (["b"], ["b"])


def _retries(key: OneKey, **options: Any) -> LeaveVerdict:
    """Task a leaves, and is to be followed by a+1."""
    return key.leave(queued("a", successor="a+1", **options), Outcome.OVER)


def test_a_reservation_makes_no_key_due_where_no_message_waits(key: OneKey) -> None:
    _retries(key)

    assert (key.woken, key.due_in()) == (["a+1"], None)
    assert isinstance(key.enter(claim("c")), Busy)
