"""A queue is stored in its order, for as long as it takes."""

from __future__ import annotations

from celery_dlock.core.operations import Enter
from celery_dlock.core.state import Drop, Park, Reason
from celery_dlock.testing.contract import queueing as shipped
from celery_dlock.testing.contract.words import DAY, ENQUEUE, QUEUE, claim
from tests.contract.key import OVER, Key, KeyTests


class QueueingTests(KeyTests, shipped.QueueingTests):
    def test_the_queue_takes_many_at_once_in_their_order(self, key: Key) -> None:
        key.runs("a")
        key.parks("c", wait=ENQUEUE)
        asked = [Enter(claim(task, wait=ENQUEUE), task.encode()) for task in "bcd"]

        verdicts = [reply.verdict for reply in key.backend.apply_each(asked)]

        assert verdicts == [Park(), Drop(Reason.WAITING), Park()]
        assert (key.waiting, key.parked) == (["c", "b", "d"], 3)
        task = "a"
        for following in "cbd":
            assert key.leaves(task) == [following]
            key.runs(following, wait=QUEUE)
            task = following

    def test_a_parked_message_never_lapses(self, key: Key) -> None:
        key.runs("a", ttl=100 * DAY)
        key.parks("b")
        key.passes(99 * DAY)

        assert key.leaves("a", OVER) == ["b"]
