"""A task that retries keeps its key: the slot that it leaves is reserved for its successor."""

from __future__ import annotations

from typing import Any

import pytest

from celery_dlock.core.state import (
    Busy,
    Grant,
    LeaveVerdict,
    Left,
    Mode,
    NotHeld,
    Outcome,
    Park,
    Run,
)
from tests.unit.one_key import PATIENCE, TTL, OneKey, claim, kept, place, published, queued, reader

LONG = 10 * TTL


@pytest.fixture
def key() -> OneKey:
    """A key that a holds."""
    key = OneKey()
    key.enter(queued("a"))
    return key


def test_nobody_overtakes_the_retry(key: OneKey) -> None:
    key.enter(queued("b"))

    assert _retries(key) == Left(carried=False)

    turn = Grant("a+1", Mode.EXCLUSIVE, 1, parked=False, woken=0, due=key.now + PATIENCE)
    assert (key.state.grants, key.wakes, key.waiting) == ((turn,), [], ["b"])
    assert key.enter(claim("c")) == Busy(holder=None, left=0, parked=1)


def test_the_retry_takes_what_is_reserved(key: OneKey) -> None:
    key.enter(queued("b"))
    _retries(key)

    assert isinstance(key.enter(queued("a+1")), Run)

    assert (key.running, key.woken, key.waiting) == (["a+1"], [], ["b"])
    key.leave(queued("a+1"))
    assert key.wakes == ["b"]


def test_the_retry_takes_it_on_any_policy(key: OneKey) -> None:
    _retries(key)

    assert isinstance(key.enter(claim("a+1")), Run)


def test_a_retry_whose_message_is_kept_takes_it_too(key: OneKey) -> None:
    _retries(key)

    key.enter(kept("a+1"))

    assert (key.running, key.waiting) == (["a+1"], ["a+1"])


def test_a_reservation_expires_and_the_next_is_woken(key: OneKey) -> None:
    key.enter(queued("b"))
    _retries(key)
    key.passes(PATIENCE - 1)
    key.reap()
    assert (key.woken, key.wakes) == (["a+1"], [])

    key.passes(1)
    key.reap()

    assert (key.woken, key.wakes) == (["b"], ["b"])


def test_a_retry_that_comes_too_late_waits_like_any_other(key: OneKey) -> None:
    key.enter(queued("b"))
    _retries(key)
    key.passes(PATIENCE)

    assert key.enter(queued("a+1")) == Park()

    assert (key.wakes, key.waiting) == (["b"], ["a+1"])


def test_the_key_is_due_when_the_reservation_expires_if_a_message_waits(key: OneKey) -> None:
    key.enter(queued("b"))
    _retries(key)
    assert key.due_in() == PATIENCE

    # And not at all if none does: who comes will see
    key.passes(PATIENCE)
    key.reap()
    key.enter(queued("b", "woken"))
    key.leave(queued("b", "woken", successor="b+1"))
    assert (key.woken, key.due_in()) == (["b+1"], None)


def test_a_reservation_that_expired_lets_newcomers_in(key: OneKey) -> None:
    _retries(key)
    key.passes(PATIENCE)

    assert isinstance(key.enter(claim("c")), Run)


def test_leaving_twice_reserves_once(key: OneKey) -> None:
    _retries(key)
    after = key.state

    assert isinstance(_retries(key), NotHeld)

    assert key.state == after


def test_who_lost_its_lock_reserves_nothing(key: OneKey) -> None:
    key.passes(TTL)
    key.reap()

    assert isinstance(_retries(key), NotHeld)

    assert key.woken == []


def test_a_retry_reserves_one_slot_of_two() -> None:
    key = OneKey()
    for task in ("a", "b", "c"):
        key.enter(queued(task, limit=2))

    _retries(key, limit=2)
    assert (key.running, key.woken, key.waiting) == (["b"], ["a+1"], ["c"])

    key.leave(queued("b", limit=2))
    assert key.wakes == ["c"]
    assert isinstance(key.enter(queued("a+1", limit=2)), Run)


def test_a_reader_that_retries_keeps_writers_out_and_lets_readers_in() -> None:
    key = OneKey()
    key.enter(reader("a"))

    _retries(key, mode=Mode.SHARED)

    assert isinstance(key.enter(claim("w")), Busy)
    assert isinstance(key.enter(reader("r")), Run)
    assert isinstance(key.enter(reader("a+1")), Run)


def test_a_retry_under_another_limit_goes_to_the_head() -> None:
    # Given two slots, both taken, the second of them reserved for a retry
    key = OneKey()
    for task in "ab":
        key.enter(queued(task, limit=2))
    _retries(key, limit=2)
    key.enter(queued("c", limit=2))

    assert key.enter(queued("a+1", limit=1)) == Park()

    assert (key.woken, key.waiting) == ([], ["a+1", "c"])


def test_a_retry_that_waits_already_is_woken_in_place_of_a_reservation(key: OneKey) -> None:
    # Given a retry that was delivered before its forerunner had left
    key.enter(queued("b"))
    key.enter(queued("a+1"))

    _retries(key)

    assert (key.wakes, key.woken, key.waiting) == (["a+1"], ["a+1"], ["b"])
    assert isinstance(key.enter(queued("a+1", "woken")), Run)
    assert key.woken == []


def test_a_retry_that_is_woken_as_its_patience_ends_is_not_ended(key: OneKey) -> None:
    key.enter(queued("a+1", gives_up=PATIENCE))
    key.passes(PATIENCE)

    _retries(key)

    assert (key.wakes, key.endings) == (["a+1"], {})


def test_a_retry_that_has_a_place_already_has_the_key_reserved(key: OneKey) -> None:
    key.enter(queued("b"))
    key.enter(place("a+1", patience=2 * PATIENCE))

    _retries(key)

    assert (key.wakes, key.woken, key.waiting) == ([], ["a+1"], ["b"])
    assert isinstance(key.enter(place("a+1", "back")), Run)
    assert key.woken == []


def test_a_retry_that_runs_already_has_nothing_reserved() -> None:
    # Given two slots, And a retry that runs before its forerunner has left
    key = OneKey()
    for task in ("a", "a+1", "b"):
        key.enter(queued(task, limit=2))

    _retries(key, limit=2)

    assert (key.woken, key.wakes) == (["b"], ["b"])
    assert key.enter(queued("a+1", "copy", limit=2)) == Park()
    assert key.running == ["a+1"]


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


def test_a_retry_that_ends_without_asking_gives_the_reservation_back(key: OneKey) -> None:
    key.enter(queued("b"))
    _retries(key)

    key.leave(queued("a+1"), Outcome.OVER)

    assert (key.woken, key.wakes) == (["b"], ["b"])


def _retries(key: OneKey, **options: Any) -> LeaveVerdict:
    """Task a leaves, and is to be followed by a+1."""
    return key.leave(queued("a", successor="a+1", **options), Outcome.OVER)
