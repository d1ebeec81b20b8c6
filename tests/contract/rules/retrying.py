"""A retry that waits in the store until it is due, and what happens when a task fails for good."""

from __future__ import annotations

from typing import Any

import pytest

from celery_dlock.core.machine import MAX_LOST_RUNS
from celery_dlock.core.operations import PutOnHold, Replay
from celery_dlock.core.state import (
    Busy,
    Cause,
    Drop,
    End,
    Ending,
    OperatorHold,
    Outcome,
    Reason,
    WaitMode,
)
from celery_dlock.stores.base import Wake
from celery_dlock.testing.contract.words import ENQUEUE, QUEUE, SECOND
from tests.contract.key import ABANDONED, Key, KeyTests, message_of

HEAD = WaitMode.HEAD

NEWEST: dict[str, Any] = {"max_waiting": 1, "drop_oldest": True, "name": "sync"}

WEEK = 7 * 86_400


def retries(key: Key, seconds: float, **terms: Any) -> None:
    """The task a has run, and its retry b is due in so many seconds."""
    key.runs("a", wait=QUEUE)
    assert key.parks("b", wait=HEAD, delay=round(seconds * SECOND), **terms) == []


class Retries(KeyTests):
    """A retry's message waits at the head, and is woken when it is due."""

    def test_nobody_overtakes_the_retry_of_what_is_ordered(self, key: Key) -> None:
        retries(key, 60, ordered=True)
        key.parks("c", wait=ENQUEUE)

        assert key.leaves("a", successor="b") == []
        assert isinstance(key.asks("d"), Busy)
        assert key.sweeps_in(60) == ["b"]

        key.runs("b", wait=QUEUE)
        assert key.leaves("b") == ["c"]

    def test_another_one_runs_before_a_retry_that_is_due_later(self, key: Key) -> None:
        retries(key, 60)
        key.parks("c", wait=ENQUEUE)

        assert key.leaves("a", successor="b") == ["c"]
        key.runs("c", wait=QUEUE, ttl=60)
        assert key.sweeps_in(60) == ["b"]

        key.runs("b", wait=QUEUE)

    def test_it_is_not_woken_before_it_is_due_though_the_attempt_before_it_dies(
        self, key: Key
    ) -> None:
        retries(key, 60, ordered=True)

        key.passes(10)

        assert key.sweeps() == []
        assert key.sweeps_in(50) == ["b"]

    def test_it_goes_back_to_the_head_if_it_is_due_while_another_one_runs(self, key: Key) -> None:
        retries(key, 5)
        key.leaves("a", successor="b")
        key.runs("c", ttl=60)
        assert key.sweeps_in(5) == ["b"]

        key.parks("b")

        assert key.leaves("c") == ["b"]

    def test_a_revoked_one_ends_at_once(self, key: Key) -> None:
        retries(key, 60, ordered=True)
        key.leaves("a", successor="b")

        reply = key.backend.cancel("key", "b")

        assert reply.wakes == (Wake("key", "b", message_of("b"), Ending.REVOKED),)

    def test_a_newer_call_takes_its_place(self, key: Key) -> None:
        retries(key, 60, **NEWEST)
        key.leaves("a", successor="b")

        woken = key.enter("c", message=message_of("c"), wait=ENQUEUE, **NEWEST).wakes

        dropped = Wake("key", "b", message_of("b"), Ending.DROPPED)
        assert set(woken) == {dropped, Wake("key", "c", message_of("c"))}
        assert key.asks("b", wait=QUEUE) == End(Ending.DROPPED)

    @pytest.mark.parametrize("other", [{}, {**NEWEST, "name": "other"}], ids=["any", "replaces"])
    def test_a_call_of_another_task_does_not(self, key: Key, other: dict[str, Any]) -> None:
        retries(key, 60, **NEWEST)
        key.leaves("a", successor="b")

        assert key.parks("c", wait=ENQUEUE, **other) == ["c"]

        key.runs("c", wait=QUEUE, ttl=60)
        assert key.sweeps_in(60) == ["b"]

    def test_it_makes_room_for_a_newer_call_that_waits(self, key: Key) -> None:
        key.runs("a", wait=QUEUE)
        key.parks("c", wait=ENQUEUE, **NEWEST)

        reply = key.enter("b", message=message_of("b"), wait=HEAD, delay=60 * SECOND, **NEWEST)

        assert reply.wakes == (Wake("key", "b", message_of("b"), Ending.DROPPED),)
        assert key.leaves("a", successor="b") == ["c"]

    def test_a_newer_call_does_not_take_the_place_of_one_that_was_woken(self, key: Key) -> None:
        retries(key, 5, **NEWEST)
        key.leaves("a", successor="b")
        assert key.sweeps_in(5) == ["b"]

        assert key.parks("c", wait=ENQUEUE, **NEWEST) == []

        key.runs("b", wait=QUEUE)
        assert key.leaves("b") == ["c"]


class Failing(KeyTests):
    """A task that shuts its key fails for good: nobody behind it runs until a person says so."""

    def fails(self, key: Key, **terms: Any) -> list[str]:
        key.runs("a", wait=QUEUE, **terms)
        key.parks("b")
        return key.leaves("a", Outcome.FAILED, shuts=True, name="shop.ship")

    def test_the_key_is_on_hold_for_a_week(self, key: Key) -> None:
        assert self.fails(key) == []

        hold = key.backend.peek("key").hold
        assert isinstance(hold, OperatorHold)
        assert (hold.by, hold.because) == ("shop.ship", "a failed")
        assert key.sweeps_in(WEEK) == ["b"]

    def test_what_the_store_has_of_it_is_a_dead_letter(self, key: Key) -> None:
        self.fails(key, keep=True, message=message_of("a"))

        (letter,) = key.backend.dead()
        assert (letter.dead.task, letter.dead.cause) == ("a", Cause.FAILED)
        assert letter.message == message_of("a")
        assert key.asks("a", "copy", wait=QUEUE) == Drop(Reason.DONE)

    def test_of_what_the_store_does_not_have_there_is_none(self, key: Key) -> None:
        self.fails(key)

        assert key.backend.dead() == []
        assert key.backend.peek("key").hold is not None

    def test_a_hold_of_a_person_stays(self, key: Key) -> None:
        key.backend.apply(PutOnHold("key", "", "first", "ann", "why", 60 * SECOND))
        key.parks("b")
        key.leaves("a", Outcome.FAILED, shuts=True)

        hold = key.backend.peek("key").hold
        assert hold is not None
        assert hold.by == "ann"

    def test_a_replayed_one_is_the_first_again(self, key: Key) -> None:
        self.fails(key, keep=True)

        assert key.backend.apply(Replay("key", "a")).verdict

        hold = key.backend.peek("key").hold
        assert hold is not None
        assert key.waiting == ["a", "b"]
        opened = key.backend.apply(PutOnHold("key", hold.name, "", "", "", 0))
        assert [wake.task for wake in opened.wakes] == ["a"]
        key.runs("a", nonce="again", wait=QUEUE)

    def test_one_that_does_not_shut_it_lets_the_next_one_run(self, key: Key) -> None:
        key.runs("a", wait=QUEUE, keep=True)
        key.parks("b")

        assert key.leaves("a", Outcome.FAILED) == ["b"]

        assert key.backend.dead() == []

    def test_runs_that_were_lost_too_often_are_a_failure(self, key: Key) -> None:
        for number in range(MAX_LOST_RUNS):
            key.runs("a", nonce=str(number), wait=QUEUE)
            key.leaves("a", ABANDONED, str(number))
        key.parks("b", wait=ENQUEUE)

        assert key.asks("a", "last", wait=QUEUE, shuts=True) == Drop(Reason.DEAD)

        assert key.backend.peek("key").hold is not None
