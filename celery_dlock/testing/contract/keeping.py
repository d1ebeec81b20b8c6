"""Kept while it runs: the store has the message of a running task, too, until it is through."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_dlock.backends.base import LockBackend, Swept, Wake
from celery_dlock.core.state import Busy, Drop, Ending, Left, Outcome, Park, Reason
from celery_dlock.testing.clock import ManualClock
from celery_dlock.testing.contract.words import (
    ANY_BYTES,
    PLACE,
    QUEUE,
    SHARED,
    StoreUnderTest,
    claim,
    park,
    running,
    woken,
)

SWEEPERS = 4
KEYS = 40
A = claim("a", wait=QUEUE, keep=True)
MESSAGE = Wake("key", "a", b"first")


class Keeping(StoreUnderTest):
    @pytest.fixture
    def kept(self, backend: LockBackend) -> LockBackend:
        """Task a runs, and its message is kept."""
        running(backend.enter(A, b"first"))
        return backend

    def test_a_kept_message_is_given_back_byte_by_byte(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(A, ANY_BYTES))
        clock.advance(10)

        unchanged = backend.reap("key").wakes == (Wake("key", "a", ANY_BYTES),)
        assert unchanged

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

    def test_a_kept_message_is_called_first_when_its_run_was_abandoned(
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

    def test_a_kept_message_is_not_called_as_long_as_the_lease_is_renewed(
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

    def test_a_kept_message_waits_for_the_lock_delay(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a", wait=QUEUE, keep=True, lock_delay=5), b"first"))
        clock.advance(14.999_999)
        assert backend.sweep().wakes == ()

        clock.advance(0.000_001)

        assert backend.sweep().wakes == (MESSAGE,)

    def test_the_message_that_was_parked_is_the_one_that_is_kept(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("holder")))
        backend.enter(A, b"first")
        backend.leave(claim("holder"), Outcome.DONE)
        running(backend.enter(A, b"second"))
        clock.advance(10)

        assert backend.reap("key").wakes == (MESSAGE,)

    def test_the_copy_of_the_broker_of_a_kept_task_is_dropped(
        self, kept: LockBackend, clock: ManualClock
    ) -> None:
        for wait in (QUEUE, PLACE):
            copy = claim("a", "redelivered", wait=wait, keep=True)
            assert kept.enter(copy, b"redelivered").verdict == Drop(Reason.WAITING)

        clock.advance(10)
        assert kept.reap("key").wakes == (MESSAGE,)

    def test_the_copy_of_the_broker_may_answer_the_call(
        self, kept: LockBackend, clock: ManualClock
    ) -> None:
        clock.advance(10)
        kept.reap("key")

        running(kept.enter(claim("a", "redelivered", wait=QUEUE, keep=True), b"redelivered"))
        call = kept.enter(claim("a", "called", wait=QUEUE, keep=True), b"first").verdict

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

        again = claim("c", "called", wait=QUEUE, keep=True, limit=1)
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
        park(kept, "b")

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

    def test_a_run_that_lasted_longer_than_its_patience_is_called_to_run_again(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a", wait=QUEUE, keep=True, ttl=60, gives_up=5), b"first"))
        clock.advance(30)
        assert backend.sweep() == Swept((), 30.0)
        clock.advance(30)

        assert backend.sweep().wakes == (MESSAGE,)

    def test_several_that_sweep_at_once_call_each_kept_message_once(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        for number in range(KEYS):
            mine = claim("a", key=f"key {number}", wait=QUEUE, keep=True)
            running(backend.enter(mine, b"message"))
        clock.advance(10)
        barrier = threading.Barrier(SWEEPERS)

        def sweep(_: int) -> list[str]:
            barrier.wait(10)
            return [wake.key for _ in range(2) for wake in backend.sweep().wakes]

        with ThreadPoolExecutor(SWEEPERS) as pool:
            called = [key for keys in pool.map(sweep, range(SWEEPERS)) for key in keys]

        assert sorted(called) == sorted(f"key {number}" for number in range(KEYS))
