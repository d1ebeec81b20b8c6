"""A slot stays closed for a while after it was granted, whatever became of its holder."""

from __future__ import annotations

import pytest

from celery_dlock.core.operations import OpenSlot
from celery_dlock.core.state import Busy, Cooling, KeyState, Left, Mode, Outcome, Park
from celery_dlock.stores.base import LockBackend
from celery_dlock.testing.contract.words import (
    DAY,
    PLACE,
    QUEUE,
    SECOND,
    SHARED,
    StoreUnderTest,
    claim,
    listed_keys,
    park,
    running,
    woken,
)
from celery_dlock.testing.project import ManualClock

MINUTE = 60 * SECOND


class CoolingDown(StoreUnderTest):
    """With a cooldown a key with one slot starts no more than one task in that time."""

    @pytest.mark.parametrize("outcome", Outcome)
    def test_a_slot_that_is_left_early_opens_when_it_has_cooled_down(
        self, backend: LockBackend, clock: ManualClock, outcome: Outcome
    ) -> None:
        running(backend.enter(claim("a", cooldown=MINUTE)))
        clock.advance(5)

        assert isinstance(backend.leave(claim("a", cooldown=MINUTE), outcome).verdict, Left)

        assert backend.enter(claim("b")).verdict == Busy(None, 55 * SECOND, 0)
        clock.advance(54.999_999)
        assert backend.enter(claim("b")).verdict == Busy(None, 1, 0)
        clock.advance(0.000_001)
        running(backend.enter(claim("b")))

    def test_a_run_that_takes_longer_leaves_its_key_free(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a", ttl=DAY, cooldown=MINUTE)))
        clock.advance(60)

        backend.leave(claim("a", cooldown=MINUTE), Outcome.DONE)

        running(backend.enter(claim("b")))

    def test_a_holder_that_dies_leaves_its_slot_closed(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a", ttl=15, cooldown=MINUTE)))
        clock.advance(15)

        assert backend.enter(claim("b")).verdict == Busy(None, 45 * SECOND, 0)

        clock.advance(45)
        running(backend.enter(claim("b")))

    def test_a_lease_that_lasts_longer_keeps_it_closed_for_longer(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a", ttl=100, cooldown=MINUTE)))
        clock.advance(61)
        assert isinstance(backend.enter(claim("b")).verdict, Busy)

        clock.advance(39)

        running(backend.enter(claim("b")))

    def test_renewals_and_who_asks_again_do_not_lengthen_it(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        mine = claim("a", cooldown=MINUTE)
        first = running(backend.enter(mine))
        for _ in range(5):
            clock.advance(8)
            backend.renew([mine])
            assert running(backend.enter(mine)) == first

        backend.leave(mine, Outcome.OVER)

        assert backend.enter(claim("b")).verdict == Busy(None, 20 * SECOND, 0)

    def test_each_slot_cools_down_for_itself(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        for task in ("a", "b"):
            running(backend.enter(claim(task, limit=2, cooldown=MINUTE)))
            backend.leave(claim(task, limit=2, cooldown=MINUTE), Outcome.DONE)
            clock.advance(20)

        assert backend.enter(claim("c", limit=2)).verdict == Busy(None, 20 * SECOND, 0)
        clock.advance(20)
        running(backend.enter(claim("c", limit=2)))
        verdict = backend.enter(claim("d", limit=2)).verdict

        assert isinstance(verdict, Busy)
        assert verdict.holder is not None
        assert verdict.holder.task == "c"

    def test_it_is_closed_for_the_same_task_and_for_readers_too(self, backend: LockBackend) -> None:
        running(backend.enter(claim("a", cooldown=MINUTE)))
        backend.leave(claim("a", cooldown=MINUTE), Outcome.OVER)

        for other in (claim("a", "2"), claim("a", "3", wait=PLACE), claim("b", mode=SHARED)):
            assert backend.enter(other).verdict == Busy(None, MINUTE, 0)

    def test_who_waits_is_woken_when_it_has_cooled_down(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a", cooldown=MINUTE)))
        park(backend, "b", "c", cooldown=MINUTE)
        clock.advance(5)
        assert backend.leave(claim("a", cooldown=MINUTE), Outcome.DONE).wakes == ()
        swept = backend.sweep()
        assert (swept.wakes, swept.next_in) == ((), 55.0)

        clock.advance(55)

        assert woken(backend.sweep()) == ["b"]
        mine = claim("b", wait=QUEUE, cooldown=MINUTE)
        running(backend.enter(mine, b"x"))
        assert backend.leave(mine, Outcome.DONE).wakes == ()
        clock.advance(60)
        assert woken(backend.sweep()) == ["c"]

    def test_who_comes_while_it_cools_down_waits_its_turn(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a", cooldown=MINUTE)))
        backend.leave(claim("a", cooldown=MINUTE), Outcome.DONE)

        assert backend.enter(claim("b", wait=QUEUE), b"message of b").verdict == Park()

        assert backend.enter(claim("c")).verdict == Busy(None, MINUTE, 1)
        clock.advance(60)
        assert woken(backend.sweep()) == ["b"]

    def test_where_no_body_has_begun_nothing_cools_down(self, backend: LockBackend) -> None:
        running(backend.enter(claim("a", cooldown=MINUTE)))

        backend.leave(claim("a", cooldown=MINUTE, begun=False), Outcome.OVER)

        running(backend.enter(claim("b")))

    def test_whoever_gives_back_for_the_holder_need_not_know_of_it(
        self, backend: LockBackend
    ) -> None:
        running(backend.enter(claim("a", cooldown=MINUTE)))

        backend.leave(claim("a", ttl=0), Outcome.ABANDONED)

        assert backend.enter(claim("b")).verdict == Busy(None, MINUTE, 0)

    def test_of_a_key_that_has_cooled_down_nothing_stays(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a", done_ttl=0, cooldown=MINUTE)))
        backend.leave(claim("a", done_ttl=0, cooldown=MINUTE), Outcome.DONE)
        assert backend.sweep().next_in == 60.0
        clock.advance(60)

        assert backend.sweep().next_in is None

        assert listed_keys(backend) == []
        assert backend.peek("key") == KeyState()

    def test_it_is_seen_until_when(self, backend: LockBackend, clock: ManualClock) -> None:
        running(backend.enter(claim("a", cooldown=MINUTE)))
        (holder,) = backend.peek("key").holders
        assert holder.cools == clock() + MINUTE

        backend.leave(claim("a", cooldown=MINUTE), Outcome.OVER)

        for state in (backend.peek("key"), *backend.look(["key"])):
            assert state.cooling == (Cooling("1", Mode.EXCLUSIVE, 1, clock() + MINUTE),)
        assert listed_keys(backend) == ["key"]

    def test_a_slot_can_be_opened_by_name_and_who_waits_is_woken(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        for task in "ab":
            running(backend.enter(claim(task, task, limit=2, cooldown=MINUTE)))
        park(backend, "c", limit=2)
        for task in "ab":
            backend.leave(claim(task, task, limit=2, cooldown=MINUTE), Outcome.DONE)

        opened = backend.apply(OpenSlot("key", "a"))

        assert (opened.verdict, woken(opened)) == (True, ["c"])
        assert [slot.name for slot in backend.peek("key").cooling] == ["b"]
        assert not backend.apply(OpenSlot("key", "a")).verdict
