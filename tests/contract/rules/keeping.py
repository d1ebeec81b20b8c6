"""What outlives a run: the message that is kept until it is through, and the key for its retry."""

from __future__ import annotations

from typing import Any

import pytest

from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import (
    WINDOW,
    Busy,
    Drop,
    End,
    Ending,
    LeaveVerdict,
    Left,
    NotHeld,
    Outcome,
    Park,
    Reason,
)
from celery_dlock.stores.base import Reply, Swept, Wake
from celery_dlock.testing.contract.words import DAY, PLACE, QUEUE, SHARED
from tests.contract.key import ABANDONED, DONE, MICROSECOND, OVER, REPEAT, Key, KeyTests

KEEPS: dict[str, Any] = {"wait": QUEUE, "keep": True}
MESSAGE = Wake("key", "a", b"first")


class KeepingTests(KeyTests):
    """Kept while it runs: the store has the message of a running task, too, until it is through."""

    @pytest.fixture
    def kept(self, key: Key) -> Key:
        """Task a runs, and its message is kept."""
        key.runs("a", message=b"first", **KEEPS)
        return key

    @pytest.mark.parametrize("outcome", [DONE, OVER])
    def test_a_kept_message_goes_with_its_task(self, kept: Key, outcome: Outcome) -> None:
        kept.parks("b")

        assert kept.leaves("a", outcome, **KEEPS) == ["b"]

        kept.runs("b", wait=QUEUE)
        kept.leaves("b")
        kept.passes(60)
        assert kept.sweep() == Swept((), None)
        assert kept.backend.parked(["a"]) == []
        assert kept.parked == 0

    @pytest.mark.parametrize("outcome", [ABANDONED, REPEAT])
    def test_a_kept_message_is_woken_first_when_its_task_has_to_run_again(
        self, kept: Key, outcome: Outcome
    ) -> None:
        kept.parks("b")

        reply = kept.leave("a", outcome, b"repeat", **KEEPS)

        assert reply == Reply(Left(carried=True), (MESSAGE,))
        kept.runs("a", nonce="again", message=b"again", **KEEPS)

    def test_a_kept_message_is_found_by_a_sweep_when_the_lease_has_ended(self, kept: Key) -> None:
        assert kept.sweep() == Swept((), 10.0)
        kept.passes(10 - MICROSECOND)
        assert kept.sweeps() == []

        kept.passes(MICROSECOND)

        assert kept.sweep() == Swept((MESSAGE,), 5.0)
        assert kept.sweep() == Swept((), 5.0)

    def test_a_kept_message_is_not_woken_as_long_as_the_lease_is_renewed(self, kept: Key) -> None:
        for _ in range(10):
            kept.passes(6)
            kept.renews("a", **KEEPS)
            assert kept.sweeps() == []

        assert kept.sweeps_in(10) == ["a"]

    def test_the_message_that_was_parked_is_the_one_that_is_kept(self, key: Key) -> None:
        key.runs("holder")
        key.enter("a", message=b"first", **KEEPS)
        key.leaves("holder")
        key.runs("a", message=b"second", **KEEPS)
        key.passes(10)

        assert key.reap() == (MESSAGE,)

    def test_the_duplicate_of_the_broker_of_a_kept_task_is_dropped(self, kept: Key) -> None:
        for wait in (QUEUE, PLACE):
            assert kept.asks("a", "redelivered", wait=wait, keep=True) == Drop(Reason.WAITING)

        kept.passes(10)
        assert kept.reap() == (MESSAGE,)

    def test_the_duplicate_of_the_broker_may_answer_the_wake(self, kept: Key) -> None:
        kept.passes(10)
        kept.reap()

        kept.runs("a", nonce="redelivered", message=b"redelivered", **KEEPS)

        assert kept.asks("a", "woken", message=b"first", **KEEPS) == Drop(Reason.WAITING)
        assert kept.leave("a", ABANDONED, nonce="redelivered").wakes == (MESSAGE,)

    def test_a_kept_task_that_finds_the_limit_lowered_goes_back(self, key: Key) -> None:
        key.runs("a", "b", limit=2)
        key.enter("c", message=b"first", limit=2, **KEEPS)
        key.leaves("a", limit=2)

        assert key.asks("c", "woken", message=b"second", limit=1, **KEEPS) == Park()

        assert key.leave("b", limit=2).wakes == (Wake("key", "c", b"first"),)

    def test_a_kept_message_neither_counts_as_waiting_nor_makes_room(self, kept: Key) -> None:
        assert kept.refuses("b").parked == 0

        kept.parks("b", max_waiting=1, drop_oldest=True)
        full = kept.refuses("c", wait=QUEUE, max_waiting=1)

        assert (full.full, full.parked) == (True, 1)
        reply = kept.enter("c", wait=QUEUE, max_waiting=1, drop_oldest=True)
        assert reply.wakes == (Wake("key", "b", b"message of b", Ending.DROPPED),)

    def test_a_kept_message_is_not_in_the_way_where_there_is_room(self, key: Key) -> None:
        for slot, task in enumerate("ab"):
            assert key.runs(task, limit=2, **KEEPS).slot == slot
        assert key.parks("c", limit=2, **KEEPS) == []

        assert key.leaves("a", limit=2, **KEEPS) == ["c"]

    def test_readers_run_beside_the_kept_messages_of_others(self, key: Key) -> None:
        key.runs("r", "s", mode=SHARED, **KEEPS)
        key.parks("w")

        assert key.leaves("r", ABANDONED, mode=SHARED) == ["r"]

    def test_a_run_longer_than_its_patience_is_woken_to_run_again(self, key: Key) -> None:
        key.runs("a", ttl=60, gives_up=5, message=b"first", **KEEPS)
        key.passes(30)
        assert key.sweep() == Swept((), 30.0)
        key.passes(30)

        assert key.sweep().wakes == (MESSAGE,)


RETRY = "a:1:0"


def leave_for_retry(key: Key, **terms: Any) -> LeaveVerdict:
    """Let a leave its key for a retry, which is due within half a minute."""
    return key.leave("a:0:0", OVER, successor=RETRY, **terms).verdict


class Reserving(KeyTests):
    """A retry keeps its key, which is reserved for it, and for so long only."""

    @pytest.fixture
    def retried(self, key: Key) -> Key:
        """Task a has left its key to its retry; task b waits."""
        key.runs("a:0:0", wait=QUEUE)
        key.parks("b")
        assert leave_for_retry(key) == Left(carried=False)
        return key

    def test_a_reserved_key_is_nobody_elses(self, retried: Key) -> None:
        assert retried.asks("c") == Busy(None, 0, 1)
        assert retried.asks("d", wait=QUEUE) == Park()
        assert retried.reap() == ()

    def test_a_retry_takes_the_key_that_is_reserved_for_it(self, retried: Key) -> None:
        retried.runs(RETRY, wait=QUEUE)

        assert retried.leaves(RETRY, wait=QUEUE) == ["b"]

    def test_a_reservation_expires_and_a_sweep_wakes_the_next(self, retried: Key) -> None:
        assert retried.sweep() == Swept((), 30.0)
        retried.passes(30 - MICROSECOND)
        assert retried.sweeps() == []

        retried.passes(MICROSECOND)

        assert retried.sweep() == Swept((Wake("key", "b", b"message of b"),), 5.0)
        assert retried.asks(RETRY, wait=QUEUE) == Park()

    def test_a_reservation_expires_where_nobody_waits(self, key: Key) -> None:
        key.runs("a:0:0")
        leave_for_retry(key, patience=3 * DAY)
        assert key.sweep() == Swept((), None)
        key.passes(3 * DAY - MICROSECOND)
        assert key.asks("b") == Busy(None, 0, 0)

        key.passes(MICROSECOND)

        key.runs("b")

    def test_leaving_again_reserves_nothing_more(self, retried: Key) -> None:
        retried.passes(20)
        assert isinstance(leave_for_retry(retried), NotHeld)
        retried.passes(10)

        assert [wake.task for wake in retried.reap()] == ["b"]

    def test_who_has_lost_its_lock_reserves_nothing(self, key: Key) -> None:
        key.runs("a:0:0")
        key.passes(10)
        key.runs("b")

        assert isinstance(leave_for_retry(key), NotHeld)

        key.leaves("b", OVER)
        key.runs("c")

    def test_one_slot_of_two_is_reserved(self, key: Key) -> None:
        key.runs("a:0:0", "b", limit=2)
        key.parks("c", limit=2)
        leave_for_retry(key, limit=2)

        assert key.leaves("b", OVER, limit=2) == ["c"]
        key.runs("c", wait=QUEUE, limit=2)
        assert key.runs(RETRY, limit=2).slot == 1

    def test_a_reader_that_retries_lets_readers_in(self, key: Key) -> None:
        key.runs("a:0:0", mode=SHARED)
        leave_for_retry(key, mode=SHARED)

        assert key.asks("w") == Busy(None, 0, 0)
        key.runs("r", RETRY, mode=SHARED)

    @pytest.mark.parametrize("others", [1, 2 * WINDOW], ids=["one waits", "many wait"])
    def test_a_retry_that_was_faster_and_waits_is_woken(self, key: Key, others: int) -> None:
        key.runs("a:0:0")
        key.parks(*(f"task {n}" for n in range(others)))
        key.enter(RETRY, message=b"retry", wait=QUEUE)

        reply = key.leave("a:0:0", OVER, successor=RETRY)

        assert reply.wakes == (Wake("key", RETRY, b"retry"),)
        key.runs(RETRY, wait=QUEUE)
        assert key.leaves(RETRY) == ["task 0"]
        assert key.parked == others - 1

    def test_a_reservation_is_ended_by_a_revocation_and_its_task_when_it_comes(
        self, key: Key
    ) -> None:
        key.runs("a:0:0")
        key.parks("b")
        key.leave("a:0:0", OVER, successor=RETRY, patience=60 * SECOND)

        assert key.cancels(RETRY) == ["b"]

        key.runs("b", wait=QUEUE)
        key.passes(3_600)
        assert key.asks(RETRY, "late") == End(Ending.REVOKED)
        key.leave(RETRY, nonce="late")
        assert key.asks(RETRY, "copy") == Drop(Reason.DONE)

    def test_a_task_may_leave_its_turn_to_itself(self, key: Key) -> None:
        key.runs("a")
        key.parks("b")

        assert key.leave("a", REPEAT, successor="a").verdict == Left(carried=False)

        assert key.asks("c") == Busy(None, 0, 1)
        key.runs("a", nonce="2", wait=QUEUE)

    def test_a_delivery_that_waits_behind_one_that_does_so_is_woken(self, key: Key) -> None:
        key.runs("a")
        key.parks("b")
        key.enter("a", "2", b"second", wait=QUEUE)

        reply = key.leave("a", REPEAT, successor="a")

        assert reply.wakes == (Wake("key", "a", b"second"),)
        key.runs("a", nonce="3", wait=QUEUE)

    def test_a_retry_that_was_faster_and_has_a_place_finds_it_reserved(self, key: Key) -> None:
        key.runs("a:0:0")
        key.parks("b")
        key.refuses(RETRY, wait=PLACE, patience=1)

        assert leave_for_retry(key) == Left(carried=False)

        key.passes(30 - MICROSECOND)  # as long as if it had none
        key.runs(RETRY, wait=PLACE)
        assert key.leaves(RETRY) == ["b"]

    def test_a_retry_that_was_faster_and_runs_has_nothing_reserved(self, key: Key) -> None:
        key.runs("a:0:0", RETRY, limit=2)

        leave_for_retry(key, limit=2)

        key.runs("b", limit=2)
