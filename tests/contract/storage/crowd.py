"""A queue longer than a store loads."""

from __future__ import annotations

from celery_dlock.core.state import WINDOW, Busy, Drop, Outcome, Reason
from celery_dlock.stores.base import LockBackend
from celery_dlock.testing.contract import crowd as shipped
from celery_dlock.testing.contract.words import PLACE, QUEUE, claim, park, running, woken
from celery_dlock.testing.project import ManualClock

LONG = 1_000


class Crowd(shipped.Crowd):
    def test_a_queue_longer_than_the_window_is_still_served_in_order(
        self, backend: LockBackend
    ) -> None:
        backend.enter(claim("holder"))
        park(backend, *(f"task {n}" for n in range(LONG)))
        last = f"task {LONG - 1}"

        assert backend.enter(claim("other")).verdict == Busy(
            backend.peek("key").holders[0], 10_000_000, LONG
        )
        assert backend.enter(claim(last, "copy", wait=QUEUE), b"x").verdict == Drop(Reason.WAITING)

        task = "holder"
        for number in range(2 * WINDOW):
            assert woken(backend.leave(claim(task), Outcome.DONE)) == [f"task {number}"]
            task = f"task {number}"
            running(backend.enter(claim(task, wait=QUEUE)))
        assert backend.peek("key").parked == LONG - 2 * WINDOW

    def test_a_task_far_back_that_finished_meanwhile_leaves_the_queue(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("late"))
        clock.advance(11)
        backend.enter(claim("holder", ttl=3600))
        park(backend, *(f"task {n}" for n in range(2 * WINDOW)))
        backend.enter(claim("late", "copy", wait=PLACE))
        park(backend, "last")

        backend.leave(claim("late"), Outcome.DONE)

        queue = [entry.task for entry in backend.peek("key").waiting]
        assert queue == [*(f"task {n}" for n in range(2 * WINDOW)), "last"]

    def test_a_newcomer_does_not_overtake_those_beyond_the_window(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        slots = WINDOW + 8
        for number in range(slots):
            backend.enter(claim(f"holder {number}", limit=slots))
        queue = [f"task {n}" for n in range(2 * WINDOW)]
        park(backend, *queue, limit=slots)
        clock.advance(11)

        tasks: list[str] = woken(
            backend.enter(claim("newcomer", wait=QUEUE, limit=slots), b"message")
        )
        for _ in range(3):
            tasks += woken(backend.reap("key"))

        assert tasks == queue[:slots]

    def test_places_that_expired_by_the_hundred_do_not_hide_a_message(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("holder", ttl=60))
        for number in range(100):
            backend.enter(claim(f"place {number}", wait=PLACE))
        park(backend, "parked")
        clock.advance(31)

        assert woken(backend.leave(claim("holder"), Outcome.DONE)) == ["parked"]
