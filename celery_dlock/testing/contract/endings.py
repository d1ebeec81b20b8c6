"""Endings: a message that waited too long, or has to make room, is called to end, visibly."""

from __future__ import annotations

import pytest

from celery_dlock.backends.base import LockBackend, Wake
from celery_dlock.core.state import Busy, Drop, End, Ending, Lost, Outcome, Park, Reason
from celery_dlock.testing.clock import ManualClock
from celery_dlock.testing.contract.words import (
    PLACE,
    QUEUE,
    StoreUnderTest,
    claim,
    park,
    running,
    woken,
)

TIMED_OUT = Wake("key", "b", b"message of b", Ending.TIMED_OUT)
DROPPED = Wake("key", "b", b"message of b", Ending.DROPPED)


class Endings(StoreUnderTest):
    @pytest.fixture
    def overdue(self, backend: LockBackend, clock: ManualClock) -> LockBackend:
        """Task a holds the key; task b has waited for as long as it would."""
        running(backend.enter(claim("a", ttl=3600)))
        park(backend, "b", gives_up=60)
        clock.advance(60)
        return backend

    def test_a_message_is_called_to_end_at_the_instant_when_it_has_waited_for_long_enough(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a", ttl=3600)))
        park(backend, "b", gives_up=60)
        clock.advance(59.999_999)
        assert backend.reap("key").wakes == ()

        clock.advance(0.000_001)

        assert backend.reap("key").wakes == (TIMED_OUT,)
        assert backend.reap("key").wakes == ()

    def test_whatever_happens_to_the_key_ends_who_waited_too_long(
        self, overdue: LockBackend
    ) -> None:
        assert overdue.leave(claim("a"), Outcome.OVER).wakes == (TIMED_OUT,)

        running(overdue.enter(claim("c")))

    def test_one_delivery_brings_an_ending_about(self, overdue: LockBackend) -> None:
        overdue.reap("key")

        assert overdue.enter(claim("b", "one", wait=QUEUE), b"x").verdict == End(Ending.TIMED_OUT)
        assert overdue.enter(claim("b", "two", wait=QUEUE), b"y").verdict == Drop(Reason.WAITING)
        assert overdue.enter(claim("b", "one", wait=QUEUE), b"x").verdict == End(Ending.TIMED_OUT)

    def test_an_ending_is_over_when_its_task_is_done(
        self, overdue: LockBackend, clock: ManualClock
    ) -> None:
        overdue.reap("key")
        overdue.enter(claim("b", "one", wait=QUEUE), b"x")

        assert overdue.leave(claim("b", "one"), Outcome.DONE).verdict == Lost(carried=True)

        clock.advance(60)
        assert overdue.reap("key").wakes == ()
        assert overdue.enter(claim("b", "two", wait=QUEUE), b"x").verdict == Drop(Reason.DONE)

    def test_an_ending_that_its_taker_does_not_bring_about_is_called_again(
        self, overdue: LockBackend, clock: ManualClock
    ) -> None:
        overdue.reap("key")
        overdue.enter(claim("b", "one", wait=QUEUE, ttl=10), b"x")
        clock.advance(9.999_999)
        assert overdue.reap("key").wakes == ()

        clock.advance(0.000_001)

        assert overdue.reap("key").wakes == (TIMED_OUT,)
        assert overdue.enter(claim("b", "two", wait=QUEUE), b"x").verdict == End(Ending.TIMED_OUT)

    def test_an_ending_takes_no_slot(self, overdue: LockBackend) -> None:
        park(overdue, "c")

        assert woken(overdue.leave(claim("a"), Outcome.OVER)) == ["c"]

    def test_the_copy_of_a_running_task_is_not_ended(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a", ttl=3600)))
        backend.enter(claim("a", "copy", wait=QUEUE, gives_up=60), b"copy")
        clock.advance(60)

        assert backend.reap("key").wakes == ()

    def test_a_long_queue_that_waited_too_long_is_ended_window_by_window(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a", ttl=3600)))
        tasks = [f"task {n}" for n in range(100)]
        park(backend, *tasks, gives_up=60)
        clock.advance(60)

        ended = [wake for _ in range(5) for wake in backend.reap("key").wakes]

        assert [wake.task for wake in ended] == tasks
        assert {wake.ending for wake in ended} == {Ending.TIMED_OUT}
        assert backend.peek("key").parked == 0

    def test_a_full_queue_takes_no_message(self, backend: LockBackend) -> None:
        running(backend.enter(claim("a")))
        park(backend, "b", "c", max_waiting=2)

        verdict = backend.enter(claim("d", wait=QUEUE, max_waiting=2), b"message").verdict

        assert isinstance(verdict, Busy)
        assert (verdict.full, verdict.parked) == (True, 2)
        assert [entry.task for entry in backend.peek("key").waiting] == ["b", "c"]

    def test_the_first_message_of_a_full_queue_makes_room(self, backend: LockBackend) -> None:
        running(backend.enter(claim("a")))
        backend.enter(claim("place", wait=PLACE))
        park(backend, "b", "c")

        newest = claim("d", wait=QUEUE, max_waiting=2, drop_oldest=True)
        reply = backend.enter(newest, b"message of d")

        assert reply.verdict == Park()
        assert reply.wakes == (DROPPED,)
        assert backend.enter(newest, b"message of d").verdict == Drop(Reason.WAITING)
        state = backend.peek("key")
        assert [entry.task for entry in state.waiting] == ["place", "c", "d"]
        assert backend.enter(claim("b", wait=QUEUE), b"x").verdict == End(Ending.DROPPED)
        assert state.parked == 2

    def test_who_is_called_by_the_same_operation_has_made_room(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a")))
        park(backend, "b")
        clock.advance(10)

        reply = backend.enter(claim("c", wait=QUEUE, max_waiting=1), b"message")

        assert (reply.verdict, woken(reply)) == (Park(), ["b"])

    def test_a_dropped_message_stays_until_somebody_has_brought_it_to_its_end(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a", ttl=3600)))
        park(backend, "b")
        backend.enter(claim("c", wait=QUEUE, max_waiting=1, drop_oldest=True), b"message")

        for wait in (5, 10, 20):
            clock.advance(wait)
            assert backend.reap("key").wakes == (DROPPED,)
