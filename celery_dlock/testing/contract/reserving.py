"""A retry keeps its key: what its forerunner leaves is reserved for it, and for so long only."""

from __future__ import annotations

from typing import Any

import pytest

from celery_dlock.backends.base import LockBackend, Swept, Wake
from celery_dlock.core.state import (
    WINDOW,
    Busy,
    LeaveVerdict,
    Left,
    Lost,
    Outcome,
    Park,
)
from celery_dlock.testing.clock import ManualClock
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

RETRY = claim("a:1:0", wait=QUEUE)


def leave_for_retry(backend: LockBackend, **others: Any) -> LeaveVerdict:
    """Let a leave its key for a retry, which is due within half a minute."""
    return backend.leave(claim("a:0:0", successor="a:1:0", **others), Outcome.OVER).verdict


class Reserving(StoreUnderTest):
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

    def test_a_reservation_lapses_and_a_sweep_calls_the_next(
        self, retried: LockBackend, clock: ManualClock
    ) -> None:
        assert retried.sweep() == Swept((), 30.0)
        clock.advance(29.999_999)
        assert retried.sweep().wakes == ()

        clock.advance(0.000_001)

        assert retried.sweep() == Swept((Wake("key", "b", b"message of b"),), 5.0)
        assert retried.enter(RETRY, b"retry").verdict == Park()

    def test_a_reservation_lapses_where_nobody_waits(
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
        assert isinstance(leave_for_retry(retried), Lost)
        clock.advance(10)

        assert woken(retried.reap("key")) == ["b"]

    def test_who_has_lost_its_lock_reserves_nothing(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a:0:0")))
        clock.advance(10)
        running(backend.enter(claim("b")))

        assert isinstance(leave_for_retry(backend), Lost)

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

    def test_a_retry_that_was_faster_and_waits_is_called(self, backend: LockBackend) -> None:
        running(backend.enter(claim("a:0:0")))
        park(backend, "b")
        assert backend.enter(RETRY, b"retry").verdict == Park()

        reply = backend.leave(claim("a:0:0", successor="a:1:0"), Outcome.OVER)

        assert reply.wakes == (Wake("key", "a:1:0", b"retry"),)
        running(backend.enter(RETRY, b"retry"))
        assert woken(backend.leave(RETRY, Outcome.DONE)) == ["b"]

    def test_a_retry_that_was_faster_is_called_from_the_end_of_a_long_queue(
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
