"""How a delivery ends, and a release that is asked again because no answer was heard."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_dlock.core.state import Busy, Claim, Drop, Left, NotHeld, Outcome, Park, Reason
from celery_dlock.stores.base import LockBackend, Reply, Wake
from celery_dlock.testing.contract.words import QUEUE, StoreUnderTest, claim, park, running, woken
from celery_dlock.testing.project import ManualClock

DONE = Drop(Reason.DONE)


class Outcomes(StoreUnderTest):
    """How a delivery ends decides what becomes of its task, also when its lease had gone before."""

    def test_a_duplicate_of_a_finished_task_is_dropped(self, backend: LockBackend) -> None:
        backend.enter(claim("a"))
        assert backend.leave(claim("a"), Outcome.DONE).verdict == Left(carried=True)

        assert backend.enter(claim("a", "copy")).verdict == DONE
        assert backend.enter(claim("a", "copy", wait=QUEUE), b"m").verdict == DONE

        running(backend.enter(claim("b")))

    def test_a_finished_task_is_forgotten_after_its_time(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a"))
        backend.leave(claim("a", done_ttl=3600), Outcome.DONE)

        clock.advance(3599)
        assert backend.enter(claim("a", "copy")).verdict == DONE
        clock.advance(1)
        running(backend.enter(claim("a", "later copy")))

    def test_a_task_that_finishes_again_later_is_remembered_again(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        for nonce in ("first", "second"):
            running(backend.enter(claim("a", nonce)))
            backend.leave(claim("a", nonce), Outcome.DONE)
            assert backend.enter(claim("a", "copy")).verdict == DONE
            clock.advance(3601)

    def test_a_finished_task_is_not_remembered_where_no_duplicate_can_come(
        self, backend: LockBackend
    ) -> None:
        backend.enter(claim("a", done_ttl=0))
        assert backend.leave(claim("a", done_ttl=0), Outcome.DONE).verdict == Left(carried=False)

        running(backend.enter(claim("a", "copy", done_ttl=0)))

    def test_a_task_finished_on_one_key_is_not_finished_on_another(
        self, backend: LockBackend
    ) -> None:
        backend.enter(claim("a", key="one"))
        backend.leave(claim("a", key="one"), Outcome.DONE)

        running(backend.enter(claim("a", key="other")))

    def test_a_task_that_is_only_over_may_run_again(self, backend: LockBackend) -> None:
        backend.enter(claim("a"))
        assert backend.leave(claim("a"), Outcome.OVER).verdict == Left(carried=False)

        running(backend.enter(claim("a", "again")))

    def test_a_task_to_be_repeated_goes_back_to_the_head_with_its_message(
        self, backend: LockBackend
    ) -> None:
        backend.enter(claim("a", wait=QUEUE))
        park(backend, "b")

        reply = backend.leave(claim("a", wait=QUEUE), Outcome.REPEAT, b"message")

        assert reply.verdict == Left(carried=True)
        assert reply.wakes == (Wake("key", "a", b"message"),)

    def test_a_task_to_be_repeated_without_a_queue_is_carried_by_nobody(
        self, backend: LockBackend
    ) -> None:
        backend.enter(claim("a"))

        assert backend.leave(claim("a"), Outcome.REPEAT).verdict == Left(carried=False)

        running(backend.enter(claim("a", "again")))

    def test_a_task_to_be_repeated_is_carried_when_another_duplicate_runs(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a", "first", wait=QUEUE))
        clock.advance(11)
        backend.enter(claim("a", "second", wait=QUEUE))

        reply = backend.leave(claim("a", "first", wait=QUEUE), Outcome.REPEAT, b"message")

        assert reply.verdict == NotHeld(carried=True)
        assert backend.leave(claim("a", "second"), Outcome.DONE).wakes == ()

    def test_a_task_to_be_repeated_is_woken_when_the_duplicate_that_ran_has_died(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a", "first", wait=QUEUE))
        clock.advance(11)
        backend.enter(claim("a", "second", wait=QUEUE))
        backend.leave(claim("a", "first", wait=QUEUE), Outcome.REPEAT, b"message")

        clock.advance(11)

        assert backend.reap("key").wakes == (Wake("key", "a", b"message"),)

    def test_a_task_to_be_repeated_whose_lease_has_gone_waits_again_at_the_head(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a", wait=QUEUE))
        clock.advance(11)
        backend.enter(claim("b"))
        park(backend, "c")

        reply = backend.leave(claim("a", wait=QUEUE), Outcome.REPEAT, b"message")

        assert reply.verdict == NotHeld(carried=True)
        assert woken(backend.leave(claim("b"), Outcome.DONE)) == ["a"]

    def test_an_abandoned_task_comes_before_those_that_have_not_started(
        self, backend: LockBackend
    ) -> None:
        backend.enter(claim("a"))
        park(backend, "b", "c")
        assert woken(backend.leave(claim("a"), Outcome.ABANDONED)) == ["b"]

        assert backend.enter(claim("a", "again", wait=QUEUE), b"m").verdict == Park()

        running(backend.enter(claim("b", wait=QUEUE)))
        assert woken(backend.leave(claim("b"), Outcome.DONE)) == ["a"]

    def test_a_task_that_nobody_heard_to_have_the_key_comes_before_those_that_have_not_started(
        self, backend: LockBackend
    ) -> None:
        backend.enter(claim("a", wait=QUEUE))
        park(backend, "b", "c")
        assert woken(backend.leave(claim("a", wait=QUEUE), Outcome.UNUSED)) == ["b"]

        assert backend.enter(claim("a", "again", wait=QUEUE), b"m").verdict == Park()

        running(backend.enter(claim("b", wait=QUEUE)))
        assert woken(backend.leave(claim("b"), Outcome.DONE)) == ["a"]

    @pytest.mark.parametrize("keep", [False, True])
    def test_a_turn_that_nobody_heard_of_is_kept_with_its_message(
        self, backend: LockBackend, clock: ManualClock, keep: bool
    ) -> None:
        mine = claim("a", wait=QUEUE, keep=keep, patience=6)
        running(backend.enter(mine, b"message"))
        park(backend, "b")

        reply = backend.leave(replace(mine, begun=False), Outcome.REPEAT, b"message")

        # It comes by itself, and nobody overtakes it
        assert reply == Reply(Left(carried=True))
        assert backend.enter(claim("c", wait=QUEUE), b"m").verdict == Park()
        running(backend.enter(replace(mine, nonce="again"), b"message"))
        assert woken(backend.leave(replace(mine, nonce="again"), Outcome.DONE)) == ["b"]

    def test_a_turn_that_nobody_heard_of_is_woken_where_its_task_does_not_come(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        mine = claim("a", wait=QUEUE, patience=6)
        running(backend.enter(mine, b"message"))
        park(backend, "b")
        backend.leave(replace(mine, begun=False), Outcome.REPEAT, b"message")

        clock.advance(5)
        assert backend.reap("key").wakes == ()
        clock.advance(1)
        assert backend.reap("key").wakes == (Wake("key", "a", b"message"),)

    @pytest.mark.parametrize("waits", [False, True])
    def test_who_had_no_turn_gets_none_because_nobody_heard(
        self, backend: LockBackend, waits: bool
    ) -> None:
        backend.enter(claim("holder"))
        park(backend, "b", *(["a"] if waits else []))
        unheard = claim("a", "unheard", wait=QUEUE, patience=6, begun=False)

        reply = backend.leave(unheard, Outcome.REPEAT, b"message")

        assert reply.verdict == NotHeld(carried=waits)
        assert woken(backend.leave(claim("holder"), Outcome.DONE)) == ["b"]
        assert woken(backend.leave(claim("b"), Outcome.DONE)) == (["a"] if waits else [])

    def test_what_waits_stays_whoever_did_not_hear_that(self, backend: LockBackend) -> None:
        backend.enter(claim("holder"))
        park(backend, "a")

        reply = backend.leave(claim("a", "copy", wait=QUEUE), Outcome.UNUSED)

        assert reply.verdict == NotHeld(carried=True)
        assert woken(backend.leave(claim("holder"), Outcome.DONE)) == ["a"]

    def test_a_task_whose_lease_ended_comes_before_those_that_have_not_started(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a"))
        park(backend, "b", "c")
        clock.advance(11)
        assert woken(backend.reap("key")) == ["b"]

        backend.enter(claim("a", "again", wait=QUEUE), b"m")

        running(backend.enter(claim("b", wait=QUEUE)))
        assert woken(backend.leave(claim("b"), Outcome.DONE)) == ["a"]

    def test_a_lost_run_is_not_counted_against_a_task_that_finished_since(
        self, backend: LockBackend
    ) -> None:
        backend.enter(claim("a", done_ttl=0))
        backend.leave(claim("a", done_ttl=0), Outcome.ABANDONED)
        backend.enter(claim("a", "again", done_ttl=0))
        backend.leave(claim("a", "again", done_ttl=0), Outcome.DONE)
        backend.enter(claim("b"))
        park(backend, "c")

        park(backend, "a")

        assert woken(backend.leave(claim("b"), Outcome.DONE)) == ["c"]

    def test_a_task_that_finished_without_its_lease_is_finished_all_the_same(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a"))
        clock.advance(11)
        backend.enter(claim("b"))

        assert backend.leave(claim("a"), Outcome.DONE).verdict == NotHeld(carried=True)

        assert backend.enter(claim("a", "copy")).verdict == DONE
        assert isinstance(backend.enter(claim("c")).verdict, Busy)

    def test_a_task_that_finished_without_its_lease_takes_its_duplicate_out_of_the_queue(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a"))
        clock.advance(11)
        backend.enter(claim("b"))
        park(backend, "a", nonce="copy")

        backend.leave(claim("a"), Outcome.DONE)

        assert backend.leave(claim("b"), Outcome.DONE).wakes == ()

    def test_a_task_that_was_over_without_its_lease_changes_nothing(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a"))
        clock.advance(11)
        backend.enter(claim("b"))

        assert backend.leave(claim("a"), Outcome.OVER).verdict == NotHeld(carried=False)

        running(backend.enter(claim("b")))

    def test_another_retry_of_a_finished_task_is_another_task(self, backend: LockBackend) -> None:
        backend.enter(claim("a:0:0"))
        backend.leave(claim("a:0:0"), Outcome.DONE)

        running(backend.enter(claim("a:1:0")))


def asked_again(mine: Claim) -> Claim:
    return replace(mine, again=True)


class Repeating(StoreUnderTest):
    """Who did not hear the answer to giving a key back asks again, and hears the same."""

    @pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.OVER])
    @pytest.mark.parametrize("done_ttl", [0, 3600])
    def test_a_release_asked_again_is_answered_as_the_first_time(
        self, backend: LockBackend, outcome: Outcome, done_ttl: float
    ) -> None:
        mine = claim("a", done_ttl=done_ttl)
        running(backend.enter(mine))
        park(backend, "b", "c")

        first = backend.leave(mine, outcome)

        assert woken(first) == ["b"]
        assert backend.leave(asked_again(mine), outcome) == first
        assert backend.leave(asked_again(mine), outcome) == first

    def test_a_release_without_company_asked_again_is_answered_as_the_first_time(
        self, backend: LockBackend
    ) -> None:
        running(backend.enter(claim("a")))

        first = backend.leave(claim("a"), Outcome.DONE)

        assert backend.leave(asked_again(claim("a")), Outcome.DONE) == first

    def test_a_release_that_is_heard_only_when_asked_again_releases_the_key(
        self, backend: LockBackend
    ) -> None:
        running(backend.enter(claim("a")))
        park(backend, "b")

        reply = backend.leave(asked_again(claim("a")), Outcome.DONE)

        assert reply.verdict == Left(carried=True)
        assert woken(reply) == ["b"]

    def test_a_task_to_be_repeated_that_says_so_again_waits_once(
        self, backend: LockBackend
    ) -> None:
        mine = claim("a", wait=QUEUE)
        running(backend.enter(mine))
        park(backend, "b")

        first = backend.leave(mine, Outcome.REPEAT, b"message")

        assert first.wakes == (Wake("key", "a", b"message"),)
        assert backend.leave(asked_again(mine), Outcome.REPEAT, b"message") == first
        running(backend.enter(claim("a", "woken", wait=QUEUE)))
        assert woken(backend.leave(claim("a", "woken"), Outcome.DONE)) == ["b"]

    def test_who_has_answered_a_wake_is_not_woken_when_a_release_is_asked_again(
        self, backend: LockBackend
    ) -> None:
        running(backend.enter(claim("a")))
        park(backend, "b", "c")
        backend.leave(claim("a"), Outcome.DONE)
        running(backend.enter(claim("b", wait=QUEUE)))

        assert backend.leave(asked_again(claim("a")), Outcome.DONE).wakes == ()
        assert woken(backend.leave(claim("b"), Outcome.DONE)) == ["c"]

    def test_a_finished_task_whose_lock_is_another_s_is_told_so_although_it_asks_again(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        """Nothing was heard of its end before, so nobody but the store took the lock away."""
        running(backend.enter(claim("a")))
        clock.advance(11)
        running(backend.enter(claim("b")))

        reply = backend.leave(asked_again(claim("a")), Outcome.DONE)

        assert reply.verdict == NotHeld(carried=True)
        running(backend.enter(claim("b")))
