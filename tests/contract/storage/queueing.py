"""A queue is stored in its order, for as long as it takes."""

from __future__ import annotations

from celery_dlock.core.operations import Enter
from celery_dlock.core.state import Drop, Outcome, Park, Reason
from celery_dlock.stores.base import LockBackend
from celery_dlock.testing.contract import queueing as shipped
from celery_dlock.testing.contract.words import DAY, ENQUEUE, QUEUE, claim, park, running, woken
from celery_dlock.testing.project import ManualClock


class QueueingTests(shipped.QueueingTests):
    def test_the_queue_takes_many_at_once_in_their_order(self, backend: LockBackend) -> None:
        backend.enter(claim("a"))
        backend.enter(claim("c", wait=ENQUEUE), b"c")
        asked = [Enter(claim(task, wait=ENQUEUE), task.encode()) for task in "bcd"]

        verdicts = [reply.verdict for reply in backend.apply_each(asked)]

        assert verdicts == [Park(), Drop(Reason.WAITING), Park()]
        task = "a"
        for following in "cbd":
            assert woken(backend.leave(claim(task), Outcome.DONE)) == [following]
            running(backend.enter(claim(following, wait=QUEUE)))
            task = following

    def test_a_parked_message_never_lapses(self, backend: LockBackend, clock: ManualClock) -> None:
        backend.enter(claim("a", ttl=100 * DAY))
        park(backend, "b")
        clock.advance(99 * DAY)

        assert woken(backend.leave(claim("a"), Outcome.OVER)) == ["b"]

    def test_peeking_shows_the_queue_in_order(self, backend: LockBackend) -> None:
        backend.enter(claim("a"))
        park(backend, "b", "c", "d")

        state = backend.peek("key")

        assert [entry.task for entry in state.waiting] == ["b", "c", "d"]
        assert state.parked == 3
