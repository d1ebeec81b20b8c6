"""A second delivery of a task that runs: it waits as the first one's shadow, and never beside it.

It may be the only copy that survives the first one's death, so it must not be acknowledged away;
and it must be gone when the first one ends well.
"""

from __future__ import annotations

import pytest

from celery_dlock.backends.base import LockBackend, Wake
from celery_dlock.core.state import Drop, Left, Outcome, Park, Reason
from celery_dlock.testing.clock import ManualClock
from celery_dlock.testing.contract.words import QUEUE, StoreUnderTest, claim, park, running, woken

FIRST = claim("a", "first", wait=QUEUE)
SECOND = claim("a", "second", wait=QUEUE)


class Shadows(StoreUnderTest):
    @pytest.fixture
    def shadowed(self, backend: LockBackend) -> LockBackend:
        """Task a runs and has a shadow; task b waits behind it."""
        running(backend.enter(FIRST, b"first"))
        park(backend, "b")
        assert backend.enter(SECOND, b"second").verdict == Park()
        return backend

    @pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.OVER])
    def test_a_shadow_goes_when_the_task_is_through(
        self, shadowed: LockBackend, outcome: Outcome
    ) -> None:
        assert woken(shadowed.leave(FIRST, outcome)) == ["b"]

        running(shadowed.enter(claim("b", wait=QUEUE)))
        assert shadowed.leave(claim("b"), Outcome.DONE).wakes == ()

    @pytest.mark.parametrize("outcome", [Outcome.ABANDONED, Outcome.REPEAT])
    def test_a_shadow_is_called_first_when_the_task_did_not_get_through(
        self, shadowed: LockBackend, outcome: Outcome
    ) -> None:
        reply = shadowed.leave(FIRST, outcome, b"repeat")

        assert reply.verdict == Left(carried=True)
        assert reply.wakes == (Wake("key", "a", b"second"),)

    def test_a_shadow_is_called_first_when_the_lease_has_ended(
        self, shadowed: LockBackend, clock: ManualClock
    ) -> None:
        clock.advance(10)

        assert woken(shadowed.reap("key")) == ["a"]

        running(shadowed.enter(SECOND))

    def test_a_shadow_is_not_called_while_its_task_runs(
        self, shadowed: LockBackend, clock: ManualClock
    ) -> None:
        clock.advance(9)
        assert shadowed.reap("key").wakes == ()

        assert shadowed.enter(claim("a", "third", wait=QUEUE), b"third").verdict == Drop(
            Reason.WAITING
        )

    def test_a_shadow_takes_no_slot_from_those_behind_it(self, backend: LockBackend) -> None:
        first, second = claim("c", limit=2, key="two"), claim("d", limit=2, key="two")
        for each in (first, second):
            backend.enter(each)
        park(backend, "e", limit=2, key="two")
        backend.enter(claim("c", "second", limit=2, key="two", wait=QUEUE), b"shadow")

        assert woken(backend.leave(second, Outcome.DONE)) == ["e"]
