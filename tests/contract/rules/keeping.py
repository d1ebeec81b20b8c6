"""What outlives a run: the message that is kept until it is through, and the key for its retry."""

from __future__ import annotations

from typing import Any

import pytest

from celery_dlock.core.state import (
    WINDOW,
    Busy,
    Drop,
    Ending,
    LeaveVerdict,
    Left,
    NotHeld,
    Outcome,
    Park,
    Reason,
)
from celery_dlock.stores.base import LockBackend, Swept, Wake
from celery_dlock.testing.contract.words import (
    DAY,
    PLACE,
    QUEUE,
    SHARED,
    StoreUnderTest,
    claim,
    park,
    running,
    woken,
)
from celery_dlock.testing.project import ManualClock
from tests.contract.storage.keeping import A

MESSAGE = Wake("key", "a", b"first")


class KeepingTests(StoreUnderTest):
    """Kept while it runs: the store has the message of a running task, too, until it is through."""

    @pytest.fixture
    def kept(self, backend: LockBackend) -> LockBackend:
        """Task a runs, and its message is kept."""
        running(backend.enter(A, b"first"))
        return backend

    @pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.OVER])
    def test_a_kept_message_goes_when_its_task_is_through(
        self, kept: LockBackend, clock: ManualClock, outcome: Outcome
    ) -> None:
        park(kept, "b")

        assert woken(kept.leave(A, outcome)) == ["b"]

        running(kept.enter(claim("b", wait=QUEUE)))
        kept.leave(claim("b"), Outcome.DONE)
        clock.advance(60)
        assert kept.sweep() == Swept((), None)
        assert kept.parked(["a"]) == []
        assert kept.peek("key").parked == 0

    def test_a_kept_message_is_woken_first_when_its_run_was_abandoned(
        self, kept: LockBackend
    ) -> None:
        park(kept, "b")

        reply = kept.leave(A, Outcome.ABANDONED)

        assert (reply.verdict, reply.wakes) == (Left(carried=True), (MESSAGE,))
        running(kept.enter(claim("a", "again", wait=QUEUE, keep=True), b"again"))

    def test_a_kept_message_is_found_by_a_sweep_when_the_lease_has_ended(
        self, kept: LockBackend, clock: ManualClock
    ) -> None:
        assert kept.sweep() == Swept((), 10.0)
        clock.advance(9.999_999)
        assert kept.sweep().wakes == ()

        clock.advance(0.000_001)

        assert kept.sweep() == Swept((MESSAGE,), 5.0)
        assert kept.sweep() == Swept((), 5.0)

    def test_a_kept_message_is_not_woken_as_long_as_the_lease_is_renewed(
        self, kept: LockBackend, clock: ManualClock
    ) -> None:
        for _ in range(10):
            clock.advance(6)
            kept.renew([A])
            assert kept.sweep().wakes == ()
        clock.advance(9.999_999)
        assert kept.sweep().wakes == ()

        clock.advance(0.000_001)

        assert kept.sweep().wakes == (MESSAGE,)

    def test_the_message_that_was_parked_is_the_one_that_is_kept(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("holder")))
        backend.enter(A, b"first")
        backend.leave(claim("holder"), Outcome.DONE)
        running(backend.enter(A, b"second"))
        clock.advance(10)

        assert backend.reap("key").wakes == (MESSAGE,)

    def test_the_duplicate_of_the_broker_of_a_kept_task_is_dropped(
        self, kept: LockBackend, clock: ManualClock
    ) -> None:
        for wait in (QUEUE, PLACE):
            copy = claim("a", "redelivered", wait=wait, keep=True)
            assert kept.enter(copy, b"redelivered").verdict == Drop(Reason.WAITING)

        clock.advance(10)
        assert kept.reap("key").wakes == (MESSAGE,)

    def test_the_duplicate_of_the_broker_may_answer_the_wake(
        self, kept: LockBackend, clock: ManualClock
    ) -> None:
        clock.advance(10)
        kept.reap("key")

        running(kept.enter(claim("a", "redelivered", wait=QUEUE, keep=True), b"redelivered"))
        call = kept.enter(claim("a", "woken", wait=QUEUE, keep=True), b"first").verdict

        assert call == Drop(Reason.WAITING)
        assert kept.leave(claim("a", "redelivered"), Outcome.ABANDONED).wakes == (MESSAGE,)

    def test_a_kept_message_is_repeated_as_it_is(self, kept: LockBackend) -> None:
        reply = kept.leave(A, Outcome.REPEAT, b"repeat")

        assert (reply.verdict, reply.wakes) == (Left(carried=True), (MESSAGE,))

    def test_a_kept_task_that_finds_the_limit_lowered_goes_back_with_its_message(
        self, backend: LockBackend
    ) -> None:
        for task in "ab":
            running(backend.enter(claim(task, limit=2)))
        backend.enter(claim("c", wait=QUEUE, keep=True, limit=2), b"first")
        backend.leave(claim("a", limit=2), Outcome.DONE)

        again = claim("c", "woken", wait=QUEUE, keep=True, limit=1)
        assert backend.enter(again, b"second").verdict == Park()

        reply = backend.leave(claim("b", limit=2), Outcome.DONE)
        assert reply.wakes == (Wake("key", "c", b"first"),)

    def test_a_kept_message_does_not_count_as_waiting(self, kept: LockBackend) -> None:
        refused = kept.enter(claim("b")).verdict
        assert isinstance(refused, Busy)
        assert refused.parked == 0

        b = claim("b", wait=QUEUE, max_waiting=1)
        assert kept.enter(b, b"b").verdict == Park()
        full = kept.enter(claim("c", wait=QUEUE, max_waiting=1), b"c").verdict
        assert isinstance(full, Busy)
        assert (full.full, full.parked) == (True, 1)

    def test_a_kept_message_makes_no_room(self, kept: LockBackend) -> None:
        park(kept, "b", drop_oldest=True)

        reply = kept.enter(claim("c", wait=QUEUE, max_waiting=1, drop_oldest=True), b"c")

        assert reply.wakes == (Wake("key", "b", b"message of b", Ending.DROPPED),)

    def test_a_kept_message_is_not_in_the_way_where_there_is_room(
        self, backend: LockBackend
    ) -> None:
        tasks = [claim(task, wait=QUEUE, keep=True, limit=2) for task in "abc"]
        for number, one in enumerate(tasks[:2]):
            reply = backend.enter(one, b"message")
            assert (running(reply).slot, woken(reply)) == (number, [])
        assert backend.enter(tasks[2], b"message").verdict == Park()

        assert woken(backend.leave(tasks[0], Outcome.DONE)) == ["c"]

    def test_readers_run_beside_the_kept_messages_of_others(self, backend: LockBackend) -> None:
        for task in "rs":
            running(backend.enter(claim(task, wait=QUEUE, keep=True, mode=SHARED), b"message"))
        park(backend, "w")

        assert woken(backend.leave(claim("r", mode=SHARED), Outcome.ABANDONED)) == ["r"]

    def test_a_run_that_lasted_longer_than_its_patience_is_woken_to_run_again(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a", wait=QUEUE, keep=True, ttl=60, gives_up=5), b"first"))
        clock.advance(30)
        assert backend.sweep() == Swept((), 30.0)
        clock.advance(30)

        assert backend.sweep().wakes == (MESSAGE,)


RETRY = claim("a:1:0", wait=QUEUE)


def leave_for_retry(backend: LockBackend, **others: Any) -> LeaveVerdict:
    """Let a leave its key for a retry, which is due within half a minute."""
    return backend.leave(claim("a:0:0", successor="a:1:0", **others), Outcome.OVER).verdict


class Reserving(StoreUnderTest):
    """A retry keeps its key, which is reserved for it, and for so long only."""

    @pytest.fixture
    def retried(self, backend: LockBackend) -> LockBackend:
        """Task a has left its key to its retry; task b waits."""
        running(backend.enter(claim("a:0:0", wait=QUEUE), b"a"))
        park(backend, "b")
        assert leave_for_retry(backend) == Left(carried=False)
        return backend

    def test_a_reserved_key_is_nobody_elses(self, retried: LockBackend) -> None:
        assert retried.enter(claim("c")).verdict == Busy(None, 0, 1)
        assert retried.enter(claim("d", wait=QUEUE), b"d").verdict == Park()
        assert retried.reap("key").wakes == ()

    def test_a_retry_takes_the_key_that_is_reserved_for_it(self, retried: LockBackend) -> None:
        running(retried.enter(RETRY, b"retry"))

        assert woken(retried.leave(RETRY, Outcome.DONE)) == ["b"]

    def test_a_reservation_expires_and_a_sweep_wakes_the_next(
        self, retried: LockBackend, clock: ManualClock
    ) -> None:
        assert retried.sweep() == Swept((), 30.0)
        clock.advance(29.999_999)
        assert retried.sweep().wakes == ()

        clock.advance(0.000_001)

        assert retried.sweep() == Swept((Wake("key", "b", b"message of b"),), 5.0)
        assert retried.enter(RETRY, b"retry").verdict == Park()

    def test_a_reservation_expires_where_nobody_waits(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a:0:0")))
        leave_for_retry(backend, patience=3 * DAY)
        assert backend.sweep() == Swept((), None)
        clock.advance(3 * DAY - 0.000_001)
        assert backend.enter(claim("b")).verdict == Busy(None, 0, 0)

        clock.advance(0.000_001)

        running(backend.enter(claim("b")))

    def test_leaving_again_reserves_nothing_more(
        self, retried: LockBackend, clock: ManualClock
    ) -> None:
        clock.advance(20)
        assert isinstance(leave_for_retry(retried), NotHeld)
        clock.advance(10)

        assert woken(retried.reap("key")) == ["b"]

    def test_who_has_lost_its_lock_reserves_nothing(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a:0:0")))
        clock.advance(10)
        running(backend.enter(claim("b")))

        assert isinstance(leave_for_retry(backend), NotHeld)

        backend.leave(claim("b"), Outcome.OVER)
        running(backend.enter(claim("c")))

    def test_one_slot_of_two_is_reserved(self, backend: LockBackend) -> None:
        for task in ("a:0:0", "b"):
            running(backend.enter(claim(task, limit=2)))
        park(backend, "c", limit=2)
        leave_for_retry(backend, limit=2)

        assert woken(backend.leave(claim("b", limit=2), Outcome.OVER)) == ["c"]
        running(backend.enter(claim("c", wait=QUEUE, limit=2)))
        assert running(backend.enter(claim("a:1:0", limit=2))).slot == 1

    def test_a_reader_that_retries_lets_readers_in(self, backend: LockBackend) -> None:
        running(backend.enter(claim("a:0:0", mode=SHARED)))
        leave_for_retry(backend, mode=SHARED)

        assert backend.enter(claim("w")).verdict == Busy(None, 0, 0)
        running(backend.enter(claim("r", mode=SHARED)))
        running(backend.enter(claim("a:1:0", mode=SHARED)))

    def test_a_retry_that_was_faster_and_waits_is_woken(self, backend: LockBackend) -> None:
        running(backend.enter(claim("a:0:0")))
        park(backend, "b")
        assert backend.enter(RETRY, b"retry").verdict == Park()

        reply = backend.leave(claim("a:0:0", successor="a:1:0"), Outcome.OVER)

        assert reply.wakes == (Wake("key", "a:1:0", b"retry"),)
        running(backend.enter(RETRY, b"retry"))
        assert woken(backend.leave(RETRY, Outcome.DONE)) == ["b"]

    def test_a_task_may_leave_its_turn_to_itself(self, backend: LockBackend) -> None:
        running(backend.enter(claim("a")))
        park(backend, "b")

        left = backend.leave(claim("a", successor="a"), Outcome.REPEAT).verdict

        assert left == Left(carried=False)
        assert backend.enter(claim("c")).verdict == Busy(None, 0, 1)
        running(backend.enter(claim("a", "2", wait=QUEUE), b"again"))

    def test_a_delivery_that_waits_behind_one_that_does_so_is_woken(
        self, backend: LockBackend
    ) -> None:
        running(backend.enter(claim("a")))
        park(backend, "b")
        assert backend.enter(claim("a", "2", wait=QUEUE), b"second").verdict == Park()

        reply = backend.leave(claim("a", successor="a"), Outcome.REPEAT)

        assert reply.wakes == (Wake("key", "a", b"second"),)
        running(backend.enter(claim("a", "3", wait=QUEUE), b"second"))

    def test_a_retry_that_was_faster_is_woken_from_the_end_of_a_long_queue(
        self, backend: LockBackend
    ) -> None:
        running(backend.enter(claim("a:0:0")))
        park(backend, *(f"task {n}" for n in range(2 * WINDOW)))
        assert backend.enter(RETRY, b"retry").verdict == Park()

        reply = backend.leave(claim("a:0:0", successor="a:1:0"), Outcome.OVER)

        assert reply.wakes == (Wake("key", "a:1:0", b"retry"),)
        running(backend.enter(RETRY, b"retry"))
        assert woken(backend.leave(RETRY, Outcome.DONE)) == ["task 0"]
        assert backend.peek("key").parked == 2 * WINDOW - 1

    def test_a_retry_that_was_faster_and_has_a_place_finds_it_reserved(
        self, backend: LockBackend
    ) -> None:
        running(backend.enter(claim("a:0:0")))
        park(backend, "b")
        backend.enter(claim("a:1:0", wait=PLACE))

        assert leave_for_retry(backend) == Left(carried=False)

        running(backend.enter(claim("a:1:0", wait=PLACE)))
        assert woken(backend.leave(claim("a:1:0"), Outcome.DONE)) == ["b"]
        running(backend.enter(claim("b", wait=QUEUE)))

    def test_a_retry_that_was_faster_and_runs_has_nothing_reserved(
        self, backend: LockBackend
    ) -> None:
        for task in ("a:0:0", "a:1:0"):
            running(backend.enter(claim(task, limit=2)))

        leave_for_retry(backend, limit=2)

        running(backend.enter(claim("b", limit=2)))
