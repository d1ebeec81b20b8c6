"""Leases: they end by themselves, a renewal moves the end, and an ended one stays ended."""

from __future__ import annotations

from celery_dlock.backends.base import LockBackend
from celery_dlock.core.state import Busy, Left, Lost, Outcome, Renewed, Same
from celery_dlock.testing.clock import ManualClock
from celery_dlock.testing.contract.words import SECOND, StoreUnderTest, claim, running

MICROSECOND = 0.000_001


class Renewal(StoreUnderTest):
    def test_a_lease_holds_until_its_last_microsecond(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a"))

        clock.advance(10 - MICROSECOND)
        assert isinstance(backend.enter(claim("b")).verdict, Busy)
        clock.advance(MICROSECOND)
        running(backend.enter(claim("b")))

    def test_a_renewal_moves_the_end_to_a_full_ttl_from_now(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a"))
        clock.advance(6)

        assert backend.renew([claim("a")]) == [Renewed(clock.now + 10 * SECOND)]

        clock.advance(10 - MICROSECOND)
        assert isinstance(backend.enter(claim("b")).verdict, Busy)
        clock.advance(MICROSECOND)
        running(backend.enter(claim("b")))

    def test_a_renewal_never_brings_the_end_nearer(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a"))
        end = clock.now + 10 * SECOND

        assert backend.renew([claim("a", ttl=1)]) == [Renewed(end)]

    def test_a_renewal_may_ask_for_more_time_and_a_later_one_takes_none_of_it(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a"))
        clock.advance(6)
        end = clock.now + 120 * SECOND
        assert backend.renew([claim("a", ttl=120)]) == [Renewed(end)]

        clock.advance(60)
        assert backend.renew([claim("a")]) == [Renewed(end)]

        clock.advance(60 - MICROSECOND)
        assert isinstance(backend.enter(claim("b")).verdict, Busy)
        clock.advance(MICROSECOND)
        running(backend.enter(claim("b")))

    def test_a_renewal_after_the_end_is_lost_even_if_nobody_took_the_key(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a"))
        clock.advance(10)

        assert backend.renew([claim("a")]) == [Lost()]

        running(backend.enter(claim("b")))

    def test_a_renewal_after_a_successor_came_is_lost_and_does_not_touch_it(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a"))
        clock.advance(11)
        backend.enter(claim("b", ttl=5))

        assert backend.renew([claim("a")]) == [Lost()]

        clock.advance(5)
        running(backend.enter(claim("c")))

    def test_a_renewal_after_leaving_is_lost(self, backend: LockBackend) -> None:
        backend.enter(claim("a"))
        backend.leave(claim("a"), Outcome.OVER)

        assert backend.renew([claim("a")]) == [Lost()]

    def test_another_delivery_cannot_renew(self, backend: LockBackend, clock: ManualClock) -> None:
        backend.enter(claim("a", "first"))
        clock.advance(5)

        assert backend.renew([claim("a", "second")]) == [Lost()]

        clock.advance(5)
        running(backend.enter(claim("b")))

    def test_renewals_of_several_keys_have_a_verdict_each_in_order(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a", key="short", ttl=3))
        backend.enter(claim("b", key="long"))
        clock.advance(5)
        end = clock.now + 10 * SECOND

        verdicts = backend.renew(
            [
                claim("a", key="short", ttl=3),
                claim("b", key="long"),
                claim("c", key="never held"),
                claim("b", "other", key="long"),
            ]
        )

        assert verdicts == [Lost(), Renewed(end), Lost(), Lost()]

    def test_renewals_of_several_holders_of_one_key_all_count(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        claims = [claim(task, limit=2) for task in "ab"]
        for each in claims:
            backend.enter(each)
        clock.advance(5)

        assert backend.renew(claims) == [Renewed(clock.now + 10 * SECOND)] * 2

        clock.advance(6)
        assert isinstance(backend.enter(claim("c", limit=2)).verdict, Busy)

    def test_renewing_nothing_answers_nothing(self, backend: LockBackend) -> None:
        assert backend.renew([]) == []

    def test_a_lock_delay_keeps_the_next_out_after_a_lapse(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a", lock_delay=15))

        clock.advance(25 - MICROSECOND)
        assert isinstance(backend.enter(claim("b")).verdict, Busy)
        clock.advance(MICROSECOND)
        running(backend.enter(claim("b")))

    def test_a_lock_delay_counts_from_the_renewed_end(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a", lock_delay=15))
        clock.advance(5)
        backend.renew([claim("a", lock_delay=15)])

        clock.advance(24)
        assert isinstance(backend.enter(claim("b")).verdict, Busy)

    def test_a_lock_delay_does_not_follow_a_clean_leave(self, backend: LockBackend) -> None:
        backend.enter(claim("a", lock_delay=15))

        assert isinstance(backend.leave(claim("a", lock_delay=15), Outcome.OVER).verdict, Left)

        running(backend.enter(claim("b")))

    def test_a_lock_delay_does_not_bring_the_lease_back(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        mine = claim("a", lock_delay=15)
        backend.enter(mine)
        clock.advance(12)

        assert backend.renew([mine]) == [Lost()]
        assert isinstance(backend.enter(mine).verdict, Same)

        clock.advance(13)
        running(backend.enter(claim("b")))
