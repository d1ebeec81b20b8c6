"""Kept while it runs: the store has the message, too, until its task is through."""

from __future__ import annotations

import pytest

from celery_dlock.core.state import (
    WINDOW,
    Busy,
    Drop,
    Ending,
    Left,
    Mode,
    NotHeld,
    Outcome,
    Park,
    Reason,
    Renewed,
    Run,
)
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.memory import MemoryBackend
from celery_dlock.testing import ManualClock
from tests.unit.one_key import PATIENCE, TTL, OneKey, claim, kept, place, queued

MINUTE = 60_000_000


@pytest.fixture
def key() -> OneKey:
    """A key that a holds, and whose message is kept."""
    key = OneKey()
    assert key.enter(kept("a")) == Run(slot=0, token=1)
    return key


def test_the_message_lies_at_the_head_while_its_task_runs(key: OneKey) -> None:
    key.enter(queued("b"))

    assert (key.running, key.waiting, key.wakes) == (["a"], ["a", "b"], [])
    assert key.state.parked == 2


def test_without_keep_nothing_is_left_in_the_queue() -> None:
    key = OneKey()
    key.enter(queued("a"))

    assert (key.waiting, key.state.parked) == ([], 0)


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.OVER])
def test_it_goes_when_the_task_is_through(key: OneKey, outcome: Outcome) -> None:
    key.enter(queued("b"))

    key.leave(kept("a"), outcome)

    assert (key.wakes, key.woken, key.waiting) == (["b"], ["b"], [])
    assert key.state.parked == 0


def test_an_abandoned_run_wakes_it_before_all_others(key: OneKey) -> None:
    key.enter(queued("b"))

    assert key.leave(kept("a"), Outcome.ABANDONED) == Left(carried=True)

    assert (key.wakes, key.waiting) == (["a"], ["b"])
    assert isinstance(key.enter(kept("a", "again")), Run)


def test_a_expired_lease_wakes_it_at_its_instant(key: OneKey) -> None:
    key.passes(TTL - 1)
    key.reap()
    assert key.wakes == []

    key.passes(1)
    key.reap()

    assert key.wakes == ["a"]
    assert dict(key.state.lost) == {"a": 1}


def test_the_key_is_due_when_the_lease_of_a_kept_one_ends(key: OneKey) -> None:
    assert key.due_in() == TTL

    key.passes(TTL // 2)
    assert isinstance(key.renew(kept("a")), Renewed)

    assert key.due_in() == TTL


def test_it_is_woken_again_until_somebody_comes(key: OneKey) -> None:
    key.leave(kept("a"), Outcome.ABANDONED)

    key.passes(TTL)
    key.reap()

    assert key.wakes == ["a"]


def test_a_redelivered_copy_is_dropped_because_the_store_has_the_message(key: OneKey) -> None:
    assert key.enter(kept("a", "redelivered")) == Drop(Reason.WAITING)
    assert key.enter(place("a", "redelivered")) == Drop(Reason.WAITING)

    assert (key.waiting, key.state.parked) == (["a"], 1)


def test_a_redelivered_copy_after_the_loss_takes_the_turn_that_was_woken(key: OneKey) -> None:
    # Given a whose lease ended, and whose message was woken
    key.passes(TTL)
    key.reap()

    # When the broker's copy is first, Then it runs, And the call is one too many
    assert isinstance(key.enter(kept("a", "redelivered")), Run)
    assert key.enter(kept("a", "woken")) == Drop(Reason.WAITING)
    assert (key.running, key.waiting) == (["a"], ["a"])


def test_who_asks_again_after_a_lost_reply_keeps_one_message(key: OneKey) -> None:
    assert key.enter(kept("a")) == Run(slot=0, token=1)

    assert (key.waiting, key.state.parked) == (["a"], 1)


def test_who_is_woken_keeps_its_message_too(key: OneKey) -> None:
    key.enter(kept("b"))
    key.enter(queued("c"))
    key.leave(kept("a"))
    key.passes(1)

    key.enter(kept("b", "woken"))

    assert (key.running, key.waiting, key.woken) == (["b"], ["b", "c"], [])
    assert key.state.waiting[0].arrived == key.now
    key.leave(kept("b", "woken"), Outcome.ABANDONED)
    assert key.wakes == ["b"]


def test_who_had_a_place_keeps_its_message_instead() -> None:
    key = OneKey()
    key.enter(claim("a"))
    key.enter(place("b"))
    key.leave(claim("a"))

    key.enter(kept("b", "back"))

    assert (key.running, key.waiting, key.state.parked) == (["b"], ["b"], 1)


def test_a_delivery_that_has_to_repeat_is_woken_once(key: OneKey) -> None:
    assert key.leave(kept("a"), Outcome.REPEAT) == Left(carried=True)

    assert (key.wakes, key.woken, key.waiting) == (["a"], ["a"], [])


def test_a_repetition_after_the_lease_was_lost_changes_nothing(key: OneKey) -> None:
    key.passes(TTL)
    key.reap()
    after = key.state

    assert key.leave(kept("a"), Outcome.REPEAT) == NotHeld(carried=True)

    assert key.state == after


def test_a_result_that_comes_late_takes_the_message_out_of_the_queue(key: OneKey) -> None:
    # Given a whose lease ended, so that its message was woken
    key.passes(TTL)
    key.reap()

    assert key.leave(kept("a"), Outcome.DONE) == NotHeld(carried=True)

    assert (key.woken, key.waiting) == ([], [])
    assert key.enter(kept("a", "woken")) == Drop(Reason.DONE)


def test_a_wake_that_does_not_fit_any_more_goes_back_to_the_head_with_its_message() -> None:
    # Given two slots, And c, woken into the second of them
    key = OneKey()
    for task in "abc":
        key.enter(kept(task, limit=2))
    key.leave(kept("b", limit=2))
    assert key.woken == ["c"]

    # When the limit is one by now
    assert key.enter(kept("c", "woken", limit=1)) == Park()

    assert (key.running, key.woken) == (["a"], [])
    assert key.waiting == ["c", "a"]
    key.leave(kept("a", limit=2))
    assert key.wakes == ["c"]


def test_it_does_not_count_as_waiting(key: OneKey) -> None:
    refused = key.enter(claim("b"))

    assert isinstance(refused, Busy)
    assert refused.parked == 0


def test_it_fills_no_queue(key: OneKey) -> None:
    assert key.enter(kept("b", max_waiting=1)) == Park()

    full = key.enter(kept("c", max_waiting=1))

    assert isinstance(full, Busy)
    assert (full.full, full.parked) == (True, 1)


def test_it_does_not_make_room(key: OneKey) -> None:
    for task in "bc":
        key.enter(kept(task, max_waiting=1, drop_oldest=True))

    assert key.endings == {"b": Ending.DROPPED}
    assert key.waiting == ["a", "c"]


def test_newcomers_start_beside_it_when_there_is_room() -> None:
    key = OneKey()

    for task in "ab":
        assert isinstance(key.enter(kept(task, limit=2)), Run)
    assert key.enter(kept("c", limit=2)) == Park()

    assert key.wakes == []
    key.leave(kept("a", limit=2))
    assert (key.wakes, key.running) == (["c"], ["b"])


def test_two_runs_that_are_lost_at_once_are_both_called() -> None:
    key = OneKey()
    for task in "ab":
        key.enter(kept(task, limit=2))
    key.enter(queued("c", limit=2))
    key.passes(TTL)

    key.reap()

    assert sorted(key.wakes) == ["a", "b"]
    assert key.waiting == ["c"]


def test_readers_run_beside_each_others_messages() -> None:
    key = OneKey()
    for task in "rs":
        assert isinstance(key.enter(kept(task, mode=Mode.SHARED)), Run)
    assert key.enter(kept("w")) == Park()

    # When a reader is lost, Then it is woken to run beside the other, before the writer
    key.leave(kept("r", mode=Mode.SHARED), Outcome.ABANDONED)

    assert (key.wakes, key.running) == (["r"], ["s"])


def test_a_place_before_it_is_reserved_nothing_while_it_runs(key: OneKey) -> None:
    key.enter(place("b"))

    key.leave(kept("a"))

    assert key.woken == []
    assert isinstance(key.enter(claim("c")), Run)


def test_a_run_that_lasted_longer_than_its_patience_is_woken_to_run_again() -> None:
    key = OneKey()
    key.enter(kept("a", gives_up=PATIENCE, ttl=MINUTE))
    key.passes(MINUTE)

    key.reap()

    assert (key.wakes, key.endings) == (["a"], {})
    assert isinstance(key.enter(kept("a", "woken", gives_up=PATIENCE)), Run)


def test_the_copy_of_a_long_run_is_woken_to_run_again_too() -> None:
    key = OneKey()
    key.enter(queued("a", ttl=MINUTE))
    key.enter(queued("a", "copy", gives_up=PATIENCE))
    key.passes(MINUTE)

    key.reap()

    assert (key.wakes, key.endings) == (["a"], {})


def test_a_kept_message_is_not_ended_while_its_task_runs() -> None:
    key = OneKey()
    key.enter(kept("a", gives_up=PATIENCE, ttl=MINUTE))
    key.passes(PATIENCE)
    key.reap()

    assert (key.wakes, key.waiting) == ([], ["a"])
    assert key.due_in() == MINUTE - PATIENCE


def test_of_a_key_with_many_slots_as_many_run_as_entries_are_loaded_and_nobody_is_stuck() -> None:
    # Given a key with twice as many slots as entries of the queue are loaded
    store = MemoryBackend(BackendOptions(clock=ManualClock()))
    arriving = [f"{number}" for number in range(4 * WINDOW)]
    running: list[str] = []
    while arriving or running:
        for task in arriving:
            if store.enter(kept(task, limit=2 * WINDOW), b"message").verdict == Park():
                continue
            running.append(task)
        waits = store.peek("key").parked > len(running)

        # Then never fewer run than are loaded, while others wait, And all of them run
        assert len(running) >= WINDOW or not waits
        reply = store.leave(kept(running.pop(0), limit=2 * WINDOW), Outcome.DONE)
        arriving = [wake.task for wake in reply.wakes]
    assert store.peek("key").waiting == ()
