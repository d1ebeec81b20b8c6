"""The queue: a message is kept as it came, first come first called, and a call reserves."""

from __future__ import annotations

from celery_dlock.backends.base import LockBackend, Wake
from celery_dlock.core.state import Busy, Drop, Left, Outcome, Park, Reason
from celery_dlock.testing.clock import ManualClock
from celery_dlock.testing.contract.words import (
    ANY_BYTES,
    DAY,
    QUEUE,
    StoreUnderTest,
    claim,
    park,
    running,
    woken,
)


class Queueing(StoreUnderTest):
    def test_a_free_key_needs_no_queue(self, backend: LockBackend) -> None:
        running(backend.enter(claim("a", wait=QUEUE), b"message"))

        assert backend.leave(claim("a", wait=QUEUE), Outcome.DONE).wakes == ()

    def test_the_queue_gives_a_message_back_byte_by_byte(self, backend: LockBackend) -> None:
        backend.enter(claim("a"))
        assert backend.enter(claim("b", wait=QUEUE), ANY_BYTES).verdict == Park()

        reply = backend.leave(claim("a"), Outcome.OVER)

        # Compared outside the assert: under CI pytest would look for minutes for the difference.
        unchanged = reply.wakes == (Wake("key", "b", ANY_BYTES),)
        assert unchanged

    def test_the_queue_calls_first_come_first_called_and_one_at_a_time(
        self, backend: LockBackend
    ) -> None:
        backend.enter(claim("a"))
        park(backend, "b", "c", "d")

        task = "a"
        for following in ("b", "c", "d"):
            assert woken(backend.leave(claim(task), Outcome.DONE)) == [following]
            running(backend.enter(claim(following, wait=QUEUE)))
            task = following
        assert backend.leave(claim(task), Outcome.DONE).wakes == ()

    def test_a_call_reserves_the_key_against_newcomers(self, backend: LockBackend) -> None:
        backend.enter(claim("a"))
        park(backend, "b")
        backend.leave(claim("a"), Outcome.OVER)

        assert backend.enter(claim("newcomer")).verdict == Busy(None, 0, 0)
        assert backend.enter(claim("queuer", wait=QUEUE), b"m").verdict == Park()

        running(backend.enter(claim("b", wait=QUEUE)))

    def test_a_newcomer_does_not_overtake_who_waits(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a"))
        park(backend, "b")
        clock.advance(11)

        reply = backend.enter(claim("newcomer"))

        assert isinstance(reply.verdict, Busy)
        assert woken(reply) == ["b"]

    def test_a_copy_of_a_waiting_task_is_dropped_and_the_first_message_stays(
        self, backend: LockBackend
    ) -> None:
        backend.enter(claim("a"))
        backend.enter(claim("b", "first", wait=QUEUE), b"first")

        reply = backend.enter(claim("b", "second", wait=QUEUE), b"second")

        assert reply.verdict == Drop(Reason.WAITING)
        assert backend.leave(claim("a"), Outcome.OVER).wakes == (Wake("key", "b", b"first"),)

    def test_a_refused_task_is_told_how_many_wait(self, backend: LockBackend) -> None:
        backend.enter(claim("a"))
        park(backend, "b", "c")

        verdict = backend.enter(claim("d")).verdict

        assert isinstance(verdict, Busy)
        assert verdict.parked == 2

    def test_a_call_that_nobody_answers_is_repeated_at_growing_distance_for_ever(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a"))
        backend.enter(claim("b", wait=QUEUE), b"message")
        backend.leave(claim("a"), Outcome.OVER)

        for wait in (5, 10, 20, 40, 80, 160, 320, 600, 600):
            clock.advance(wait - 0.000_001)
            assert backend.reap("key").wakes == ()
            clock.advance(0.000_001)
            assert backend.reap("key").wakes == (Wake("key", "b", b"message"),)

        running(backend.enter(claim("b", wait=QUEUE)))

    def test_a_call_is_answered_once(self, backend: LockBackend, clock: ManualClock) -> None:
        backend.enter(claim("a"))
        park(backend, "b")
        backend.leave(claim("a"), Outcome.OVER)
        running(backend.enter(claim("b", wait=QUEUE)))

        clock.advance(6)

        assert backend.reap("key").wakes == ()
        assert isinstance(backend.leave(claim("b"), Outcome.OVER).verdict, Left)
        running(backend.enter(claim("c")))

    def test_an_ended_lease_calls_the_next_when_time_is_let_pass(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a"))
        park(backend, "b")
        assert backend.reap("key").wakes == ()
        clock.advance(10)

        assert woken(backend.reap("key")) == ["b"]
        assert backend.reap("key").wakes == ()

    def test_letting_time_pass_on_an_unknown_key_calls_nobody(self, backend: LockBackend) -> None:
        assert backend.reap("key").wakes == ()

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

    def test_a_called_task_that_finds_the_limit_lowered_goes_back_to_the_head(
        self, backend: LockBackend
    ) -> None:
        for task in "ab":
            backend.enter(claim(task, limit=2))
        park(backend, "c", "d", limit=2)
        assert woken(backend.leave(claim("a", limit=2), Outcome.OVER)) == ["c"]

        assert backend.enter(claim("c", wait=QUEUE, limit=1), b"new").verdict == Park()

        assert backend.leave(claim("b", limit=2), Outcome.OVER).wakes == (
            Wake("key", "c", b"message of c"),
        )
