"""Places: a task that comes back by itself keeps its rank, for a while, and blocks nobody."""

from __future__ import annotations

from celery_dlock.backends.base import LockBackend, Wake
from celery_dlock.core.state import Busy, Outcome, Park
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


class Places(StoreUnderTest):
    def test_a_task_that_leaves_nothing_behind_is_not_in_the_queue(
        self, backend: LockBackend
    ) -> None:
        backend.enter(claim("a"))
        backend.enter(claim("b"))

        assert backend.peek("key").waiting == ()

    def test_a_place_is_kept_before_messages_that_came_later(self, backend: LockBackend) -> None:
        backend.enter(claim("a"))
        assert isinstance(backend.enter(claim("place", wait=PLACE)).verdict, Busy)
        park(backend, "parked")

        assert backend.leave(claim("a"), Outcome.OVER).wakes == ()

        assert isinstance(backend.enter(claim("newcomer")).verdict, Busy)
        running(backend.enter(claim("place", wait=PLACE)))
        assert woken(backend.leave(claim("place"), Outcome.OVER)) == ["parked"]

    def test_a_place_does_not_overtake_messages_that_came_before(
        self, backend: LockBackend
    ) -> None:
        backend.enter(claim("a"))
        park(backend, "parked")
        backend.enter(claim("place", wait=PLACE))

        assert woken(backend.leave(claim("a"), Outcome.OVER)) == ["parked"]

        assert isinstance(backend.enter(claim("place", wait=PLACE)).verdict, Busy)

    def test_a_place_lapses_when_its_task_does_not_come_back(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a", ttl=60))
        backend.enter(claim("place", wait=PLACE))
        park(backend, "parked")
        clock.advance(30)

        assert woken(backend.leave(claim("a"), Outcome.OVER)) == ["parked"]

    def test_coming_back_keeps_the_rank_and_starts_the_patience_anew(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a", ttl=60))
        backend.enter(claim("place", wait=PLACE))
        park(backend, "parked")
        clock.advance(20)
        backend.enter(claim("place", wait=PLACE))
        clock.advance(20)

        assert backend.leave(claim("a"), Outcome.OVER).wakes == ()

        running(backend.enter(claim("place", wait=PLACE)))

    def test_a_turn_kept_for_a_place_goes_on_to_the_next_when_its_patience_is_over(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a"))
        backend.enter(claim("place", wait=PLACE))
        park(backend, "parked")
        backend.leave(claim("a"), Outcome.OVER)

        clock.advance(29)
        assert backend.reap("key").wakes == ()
        clock.advance(1)
        assert woken(backend.reap("key")) == ["parked"]

    def test_places_alone_reserve_nothing(self, backend: LockBackend) -> None:
        backend.enter(claim("a"))
        for task in ("first", "second"):
            backend.enter(claim(task, wait=PLACE))
        backend.leave(claim("a"), Outcome.OVER)

        running(backend.enter(claim("newcomer")))

    def test_a_task_that_runs_has_no_place_any_more(self, backend: LockBackend) -> None:
        backend.enter(claim("a"))
        backend.enter(claim("b", wait=PLACE))
        backend.leave(claim("a"), Outcome.OVER)
        running(backend.enter(claim("b", wait=PLACE)))

        assert backend.peek("key").waiting == ()

    def test_a_place_turns_into_a_message_at_the_same_rank(self, backend: LockBackend) -> None:
        backend.enter(claim("a"))
        backend.enter(claim("b", wait=PLACE))
        park(backend, "c")

        assert backend.enter(claim("b", wait=QUEUE), b"now parked").verdict == Park()

        assert backend.leave(claim("a"), Outcome.OVER).wakes == (Wake("key", "b", b"now parked"),)
