"""One holder at a time, and nobody frees what is another's."""

from __future__ import annotations

from celery_dlock.backends.base import Guarantee, LockBackend, Trait
from celery_dlock.core.state import Busy, Left, Lost, Outcome, Run, Same
from celery_dlock.testing.clock import ManualClock
from celery_dlock.testing.contract.words import SECOND, StoreUnderTest, claim, running


class Exclusion(StoreUnderTest):
    def test_a_free_key_is_given(self, backend: LockBackend) -> None:
        reply = backend.enter(claim("a"))

        assert running(reply).slot == 0
        assert reply.wakes == ()

    def test_a_second_task_is_told_who_holds_the_key(self, backend: LockBackend) -> None:
        backend.enter(claim("a"))

        verdict = backend.enter(claim("b")).verdict

        assert isinstance(verdict, Busy)
        assert verdict.holder is not None
        assert (verdict.holder.task, verdict.holder.nonce) == ("a", "1")
        assert verdict.left == 10 * SECOND
        assert verdict.parked == 0

    def test_what_is_left_of_the_holders_lease_counts_down(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a"))
        clock.advance(4)

        verdict = backend.enter(claim("b")).verdict

        assert isinstance(verdict, Busy)
        assert verdict.left == 6 * SECOND

    def test_a_key_that_was_left_is_free_at_once(self, backend: LockBackend) -> None:
        backend.enter(claim("a"))

        assert backend.leave(claim("a"), Outcome.OVER).verdict == Left(carried=False)

        running(backend.enter(claim("b")))

    def test_leaving_twice_frees_nothing_of_the_next_holder(self, backend: LockBackend) -> None:
        backend.enter(claim("a"))
        backend.leave(claim("a"), Outcome.OVER)
        backend.enter(claim("b"))

        assert isinstance(backend.leave(claim("a"), Outcome.OVER).verdict, Lost)

        assert isinstance(backend.enter(claim("c")).verdict, Busy)

    def test_another_delivery_of_the_same_task_frees_nothing(self, backend: LockBackend) -> None:
        backend.enter(claim("a", "first"))

        verdict = backend.leave(claim("a", "second"), Outcome.OVER).verdict

        assert isinstance(verdict, Lost)
        assert isinstance(backend.enter(claim("b")).verdict, Busy)

    def test_another_task_with_the_same_nonce_frees_nothing(self, backend: LockBackend) -> None:
        backend.enter(claim("a"))

        assert isinstance(backend.leave(claim("b"), Outcome.OVER).verdict, Lost)

        assert isinstance(backend.enter(claim("c")).verdict, Busy)

    def test_leaving_a_key_that_nobody_holds_is_lost(self, backend: LockBackend) -> None:
        assert backend.leave(claim("a"), Outcome.OVER).verdict == Lost(carried=False)

    def test_a_holder_that_wakes_too_late_does_not_free_its_successor(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a"))
        clock.advance(11)
        backend.enter(claim("b"))

        for outcome in Outcome:
            assert isinstance(backend.leave(claim("a"), outcome).verdict, Lost)

        assert [h.task for h in backend.peek("key").holders] == ["b"]
        assert isinstance(backend.enter(claim("c")).verdict, Busy)

    def test_asking_again_after_a_lost_reply_is_the_same_grant(self, backend: LockBackend) -> None:
        first = running(backend.enter(claim("a")))

        assert running(backend.enter(claim("a"))) == first

        assert len(backend.peek("key").holders) == 1
        backend.leave(claim("a"), Outcome.OVER)
        running(backend.enter(claim("b")))

    def test_asking_again_after_a_lost_reply_starts_the_lease_anew(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a"))
        clock.advance(6)
        backend.enter(claim("a"))
        clock.advance(6)

        assert isinstance(backend.enter(claim("b")).verdict, Busy)

    def test_another_delivery_of_a_running_task_is_the_same(self, backend: LockBackend) -> None:
        backend.enter(claim("a", "first"))

        verdict = backend.enter(claim("a", "second")).verdict

        assert isinstance(verdict, Same)
        assert verdict.holder.nonce == "first"
        assert verdict.left == 10 * SECOND

    def test_a_store_that_was_closed_can_be_used_again(self, backend: LockBackend) -> None:
        backend.close()
        backend.enter(claim("a"))
        backend.close()

        assert isinstance(backend.enter(claim("b")).verdict, Busy)
        assert isinstance(backend.leave(claim("a"), Outcome.OVER).verdict, Left)

    def test_peeking_shows_the_holder_and_changes_nothing(self, backend: LockBackend) -> None:
        verdict = backend.enter(claim("a")).verdict
        assert isinstance(verdict, Run)

        for _ in range(2):
            (holder,) = backend.peek("key").holders
            assert (holder.task, holder.nonce, holder.token) == ("a", "1", verdict.token)

    def test_a_key_that_nobody_touched_peeks_empty(self, backend: LockBackend) -> None:
        state = backend.peek("key")

        assert (state.holders, state.grants, state.waiting, state.parked) == ((), (), (), 0)

    def test_the_store_says_what_it_promises(self, backend: LockBackend) -> None:
        strict = backend.guarantee is Guarantee.STRICT

        assert backend.traits <= set(Trait)
        assert (Trait.STRICT_FENCING in backend.traits) == strict

    def test_a_store_for_several_processes_proves_it(self, backend: LockBackend) -> None:
        proved = hasattr(self, "test_a_second_process_sees_the_lock")

        assert (Trait.MULTI_PROCESS in backend.traits) == proved
