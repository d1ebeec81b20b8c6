"""A queue longer than a store loads."""

from __future__ import annotations

from celery_dlock.core.state import WINDOW, Busy, Drop, Reason
from celery_dlock.testing.contract import crowd as shipped
from celery_dlock.testing.contract.words import PLACE, QUEUE, SECOND
from tests.contract.key import Key, KeyTests

LONG = 1_000


class Crowd(KeyTests, shipped.Crowd):
    def test_a_queue_longer_than_the_window_is_still_served_in_order(self, key: Key) -> None:
        key.runs("holder")
        key.parks(*(f"task {n}" for n in range(LONG)))
        (holder,) = key.backend.peek("key").holders

        assert key.asks("other") == Busy(holder, 10 * SECOND, LONG)
        assert key.asks(f"task {LONG - 1}", "copy", wait=QUEUE) == Drop(Reason.WAITING)

        task = "holder"
        for number in range(2 * WINDOW):
            assert key.leaves(task) == [f"task {number}"]
            task = f"task {number}"
            key.runs(task, wait=QUEUE)
        assert key.parked == LONG - 2 * WINDOW

    def test_a_task_far_back_that_finished_meanwhile_leaves_the_queue(self, key: Key) -> None:
        key.runs("late")
        key.passes(11)
        key.runs("holder", ttl=3600)
        queue = [f"task {n}" for n in range(2 * WINDOW)]
        key.parks(*queue)
        key.refuses("late", nonce="copy", wait=PLACE)
        key.parks("last")

        key.leaves("late")

        assert key.waiting == [*queue, "last"]

    def test_a_newcomer_does_not_overtake_those_beyond_the_window(self, key: Key) -> None:
        slots = WINDOW + 8
        key.runs(*(f"holder {number}" for number in range(slots)), limit=slots)
        queue = [f"task {n}" for n in range(2 * WINDOW)]
        key.parks(*queue, limit=slots)
        key.passes(11)

        tasks = key.parks("newcomer", limit=slots)
        for _ in range(3):
            tasks += [wake.task for wake in key.reap()]

        assert tasks == queue[:slots]

    def test_places_that_expired_by_the_hundred_do_not_hide_a_message(self, key: Key) -> None:
        key.runs("holder", ttl=60)
        for number in range(100):
            key.refuses(f"place {number}", wait=PLACE)
        key.parks("parked")
        key.passes(31)

        assert key.leaves("holder") == ["parked"]
