"""The newest of a task wins over the one that runs: it is asked to stop, and does not run again."""

from __future__ import annotations

from typing import Any

import pytest

from celery_dlock.core.state import (
    Busy,
    Claim,
    Drop,
    End,
    Ending,
    Left,
    NotHeld,
    Outcome,
    Park,
    Reason,
    Renewed,
    Replaced,
    Run,
)
from celery_dlock.stores.base import LockBackend, Wake
from celery_dlock.testing.contract.words import (
    DAY,
    ENQUEUE,
    QUEUE,
    StoreUnderTest,
    claim,
    listed_keys,
    running,
    woken,
)
from celery_dlock.testing.project import ManualClock


def newest(task: str, nonce: str = "1", **options: Any) -> Claim:
    """The claim of a task whose newest wins."""
    given: dict[str, Any] = {"wait": QUEUE, "name": "sync", "max_waiting": 1, "drop_oldest": True}
    given |= {"gives_way": True, "supersedes": True}
    return claim(task, nonce, **(given | options))


A, B, C = newest("a:0:0"), newest("b:0:0"), newest("c:0:0")

A_ENDS = Wake("key", "a:0:0", b"a", Ending.DROPPED)


class Replacing(StoreUnderTest):
    """Who runs is asked to give way, by the newest of the same task and by nobody else."""

    @pytest.fixture
    def asked(self, backend: LockBackend) -> LockBackend:
        """A runs, and B waits for it to stop."""
        running(backend.enter(A, b"a"))
        assert backend.enter(B, b"b").verdict == Park()
        return backend

    def test_who_runs_is_asked_to_give_way_and_its_lease_lasts_no_longer(
        self, asked: LockBackend, clock: ManualClock
    ) -> None:
        clock.advance(9.999_999)
        assert asked.renew([A]) == [Replaced("b:0:0")]
        assert woken(asked.sweep()) == []

        clock.advance(0.000_001)

        assert woken(asked.sweep()) == ["b:0:0"]
        assert asked.renew([A]) == [NotHeld()]
        running(asked.enter(B, b"b"))

    def test_the_newest_one_asks(self, asked: LockBackend) -> None:
        assert asked.enter(C, b"c").wakes == (Wake("key", "b:0:0", b"b", Ending.DROPPED),)

        assert asked.renew([A]) == [Replaced("c:0:0")]
        (holder,) = asked.peek("key").holders
        assert holder.replaced_by == "c:0:0"

    def test_it_leaves_and_is_done(self, asked: LockBackend) -> None:
        reply = asked.leave(A, Outcome.DONE)

        assert (reply.verdict, woken(reply)) == (Left(True), ["b:0:0"])
        assert asked.enter(newest("a:0:0", "2"), b"a").verdict == Drop(Reason.DONE)

    @pytest.mark.parametrize("outcome", [Outcome.ABANDONED, Outcome.UNUSED])
    def test_it_ends_when_it_comes_again(self, asked: LockBackend, outcome: Outcome) -> None:
        asked.leave(A, outcome)
        running(asked.enter(B, b"b"))
        assert asked.peek("key").lost == ()  # it is none that has to run again

        for nonce in ("2", "3"):  # the first may die before it is through
            again = newest("a:0:0", nonce)
            assert asked.enter(again, b"a").verdict == End(Ending.DROPPED, "b:0:0")

        asked.leave(newest("a:0:0", "3"), Outcome.DONE)
        assert asked.enter(newest("a:0:0", "4"), b"a").verdict == Drop(Reason.DONE)
        assert asked.renew([B]) != [Replaced("a:0:0")]

    def test_a_message_that_it_leaves_is_woken_to_its_end(self, asked: LockBackend) -> None:
        reply = asked.leave(A, Outcome.REPEAT, b"a")

        assert A_ENDS in reply.wakes
        assert sorted(woken(reply)) == ["a:0:0", "b:0:0"]
        verdict = asked.enter(newest("a:0:0", "2"), b"a").verdict
        assert verdict == End(Ending.DROPPED, "b:0:0")

    def test_its_lease_ends_and_that_is_no_lost_run(
        self, asked: LockBackend, clock: ManualClock
    ) -> None:
        clock.advance(10)
        asked.sweep()
        running(asked.enter(B, b"b"))

        assert asked.peek("key").lost == ()
        verdict = asked.enter(newest("a:0:0", "2"), b"a").verdict
        assert verdict == End(Ending.DROPPED, "b:0:0")

    def test_who_leaves_after_that_is_woken_to_its_end_too(
        self, asked: LockBackend, clock: ManualClock
    ) -> None:
        clock.advance(10)
        asked.sweep()
        running(asked.enter(B, b"b"))

        reply = asked.leave(A, Outcome.REPEAT, b"a")

        assert (reply.verdict, reply.wakes) == (NotHeld(carried=True), (A_ENDS,))

    def test_a_copy_that_waits_behind_it_is_woken_to_its_end(
        self, asked: LockBackend, clock: ManualClock
    ) -> None:
        assert asked.enter(newest("a:0:0", "2"), b"a").verdict == Park()
        clock.advance(10)

        swept = asked.sweep()

        assert A_ENDS in swept.wakes
        assert sorted(woken(swept)) == ["a:0:0", "b:0:0"]

    def test_a_turn_that_nobody_has_taken_gives_way_too(self, asked: LockBackend) -> None:
        asked.leave(A, Outcome.DONE)
        assert asked.enter(C, b"c").verdict == Park()

        ended = asked.enter(B, b"b")

        assert (ended.verdict, woken(ended)) == (End(Ending.DROPPED, "c:0:0"), ["c:0:0"])
        running(asked.enter(C, b"c"))

    def test_so_does_one_that_comes_just_as_the_newest_asks(
        self, asked: LockBackend, clock: ManualClock
    ) -> None:
        clock.advance(10)  # and nobody has swept

        reply = asked.enter(C, b"c")

        assert (reply.verdict, woken(reply)) == (Park(), ["b:0:0"])
        assert asked.enter(B, b"b").verdict == End(Ending.DROPPED, "c:0:0")
        running(asked.enter(C, b"c"))

    def test_but_not_a_turn_of_another_task(self, backend: LockBackend) -> None:
        refund = newest("b:0:0", name="refund")
        running(backend.enter(A, b"a"))
        backend.enter(refund, b"b")
        backend.leave(A, Outcome.DONE)
        backend.enter(C, b"c")

        assert isinstance(backend.enter(refund, b"b").verdict, Run)

    @pytest.mark.parametrize(
        "other",
        [
            pytest.param(newest("b:0:0", name="refund"), id="another task"),
            pytest.param(newest("a:1:0"), id="its own retry"),
            pytest.param(newest("a:0:0", "2"), id="a copy of it"),
            pytest.param(newest("b:0:0", supersedes=False), id="one that has come before"),
        ],
    )
    def test_it_gives_way_to_no_other(
        self, backend: LockBackend, clock: ManualClock, other: Claim
    ) -> None:
        running(backend.enter(A, b"a"))

        assert backend.enter(other, b"other").verdict == Park()

        clock.advance(1)
        assert backend.renew([A]) == [Renewed(clock() + A.ttl)]

    def test_who_need_not_give_way_does_not(self, backend: LockBackend, clock: ManualClock) -> None:
        lock = claim("lock()", name="sync")
        running(backend.enter(lock))

        assert backend.enter(B, b"b").verdict == Park()

        assert backend.renew([lock]) == [Renewed(clock() + lock.ttl)]

    def test_one_whose_run_was_lost_replaces_nobody(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(A, b"a"))
        backend.leave(A, Outcome.ABANDONED)
        running(backend.enter(B, b"b"))

        assert backend.enter(newest("a:0:0", "2"), b"a").verdict == Park()

        assert backend.renew([B]) == [Renewed(clock() + B.ttl)]

    def test_a_message_that_is_parked_before_it_is_a_task_asks(self, backend: LockBackend) -> None:
        running(backend.enter(A, b"a"))

        assert backend.enter(newest("b:0:0", "", wait=ENQUEUE), b"b").verdict == Park()

        assert backend.renew([A]) == [Replaced("b:0:0")]

    def test_that_it_gave_way_is_forgotten_after_a_day(
        self, asked: LockBackend, clock: ManualClock
    ) -> None:
        asked.leave(A, Outcome.ABANDONED)
        running(asked.enter(B, b"b"))
        asked.leave(B, Outcome.DONE)
        assert asked.sweep().next_in == DAY

        running(asked.enter(claim("x")))  # it keeps nobody out
        asked.leave(claim("x"), Outcome.OVER)
        clock.advance(DAY)
        asked.sweep()

        assert asked.sweep().next_in is None
        assert listed_keys(asked) == []

    def test_who_is_refused_replaces_nobody(self, backend: LockBackend, clock: ManualClock) -> None:
        running(backend.enter(A, b"a"))
        full = newest("c:0:0", drop_oldest=False)
        assert backend.enter(newest("b:0:0", supersedes=False), b"b").verdict == Park()

        verdict = backend.enter(full, b"c").verdict

        assert isinstance(verdict, Busy)
        assert verdict.full
        assert backend.renew([A]) == [Renewed(clock() + A.ttl)]
