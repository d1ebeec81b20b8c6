"""Who holds a key: one at a time, with a token that grows, while the lease lasts."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from itertools import count, pairwise
from typing import Any

from celery_dlock.core.state import Busy, Left, NotHeld, Outcome, Renewed
from celery_dlock.stores.base import BackendOptions, Guarantee, LockBackend, Trait, wall_clock
from celery_dlock.testing.contract.words import (
    DAY,
    SECOND,
    StoreUnderTest,
    at_once,
    claim,
    park,
    running,
)
from celery_dlock.testing.project import ManualClock


class Exclusion(StoreUnderTest):
    """One holder at a time, and nobody frees what is another's."""

    def test_a_free_key_is_given_and_a_second_task_is_told_who_holds_it(
        self, backend: LockBackend
    ) -> None:
        reply = backend.enter(claim("a"))
        assert running(reply).slot == 0
        assert reply.wakes == ()

        verdict = backend.enter(claim("b")).verdict

        assert isinstance(verdict, Busy)
        assert verdict.holder is not None
        assert (verdict.holder.task, verdict.holder.nonce) == ("a", "1")
        assert (verdict.left, verdict.parked) == (10 * SECOND, 0)

    def test_leaving_twice_and_another_delivery_release_nothing(self, backend: LockBackend) -> None:
        backend.enter(claim("a"))
        backend.leave(claim("a"), Outcome.OVER)
        backend.enter(claim("b", "first"))

        for other in (claim("a"), claim("b", "second")):
            assert isinstance(backend.leave(other, Outcome.OVER).verdict, NotHeld)

        assert isinstance(backend.enter(claim("c")).verdict, Busy)

    def test_a_holder_that_wakes_too_late_does_not_free_its_successor(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a"))
        clock.advance(11)
        backend.enter(claim("b"))

        for outcome in Outcome:
            assert isinstance(backend.leave(claim("a"), outcome).verdict, NotHeld)

        assert [h.task for h in backend.peek("key").holders] == ["b"]
        assert isinstance(backend.enter(claim("c")).verdict, Busy)

    def test_asking_again_after_a_lost_reply_is_the_same_grant(self, backend: LockBackend) -> None:
        first = running(backend.enter(claim("a")))

        assert running(backend.enter(claim("a"))) == first

        assert len(backend.peek("key").holders) == 1
        backend.leave(claim("a"), Outcome.OVER)
        running(backend.enter(claim("b")))

    def test_a_store_that_was_closed_can_be_used_again(self, backend: LockBackend) -> None:
        backend.close()
        backend.enter(claim("a"))
        backend.close()

        assert isinstance(backend.enter(claim("b")).verdict, Busy)
        assert isinstance(backend.leave(claim("a"), Outcome.OVER).verdict, Left)

    def test_the_store_says_what_it_promises(self, backend: LockBackend) -> None:
        strict = backend.guarantee is Guarantee.STRICT

        assert backend.traits <= set(Trait)
        assert (Trait.STRICT_FENCING in backend.traits) == strict

    def test_a_store_for_several_processes_proves_it(self, backend: LockBackend) -> None:
        proved = hasattr(self, "test_a_second_process_sees_the_lock")

        assert (Trait.MULTI_PROCESS in backend.traits) == proved


def token(backend: LockBackend, task: str, nonce: str = "1", **others: Any) -> int:
    return running(backend.enter(claim(task, nonce, **others))).token


def shown(backend: LockBackend) -> list[int]:
    return [holder.token for holder in backend.peek("key").holders]


class Tokens(StoreUnderTest):
    """The fencing token: larger with every later grant, and fixed for as long as one lasts."""

    def test_a_hundred_grants_within_one_instant_grow_strictly(self, backend: LockBackend) -> None:
        tokens: list[int] = []
        for number in range(100):
            tokens.append(token(backend, f"task {number}"))
            backend.leave(claim(f"task {number}"), Outcome.DONE)

        assert 0 < tokens[0] <= tokens[-1] < 2**53
        assert all(earlier < later for earlier, later in pairwise(tokens))

    def test_a_token_grows_after_the_key_was_idle_for_a_month(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        first = token(backend, "a")
        backend.leave(claim("a"), Outcome.DONE)
        clock.advance(30 * DAY)
        backend.reap("key")

        assert token(backend, "b") > first

    def test_a_token_grows_when_the_clock_has_stepped_back(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        first = token(backend, "a")
        backend.leave(claim("a"), Outcome.OVER)
        clock.advance(-60)

        assert token(backend, "b") > first

    def test_a_redelivery_gets_a_larger_token(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        first = token(backend, "a", "first")
        clock.advance(11)

        assert token(backend, "a", "second") > first

    def test_a_token_stays_the_same_over_a_renewal(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        first = token(backend, "a", limit=2)
        token(backend, "b", limit=2)
        clock.advance(5)

        backend.renew([claim("a", limit=2)])

        assert min(shown(backend)) == first
        assert token(backend, "a", limit=2) == first


MICROSECOND = 0.000_001
MINUTE = 60

#: Seconds within which a hundredth of a second has passed for a store, however it rounds.
SOON = 10

#: So many threads renew so often, and as many take and leave slots meanwhile.
RENEWING = 2
RENEWALS = 5


class Renewal(StoreUnderTest):
    """Leases: they end by themselves, a renewal moves the end, and an ended one stays ended."""

    def test_a_renewal_moves_the_end_to_a_full_ttl_from_now(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a"))
        clock.advance(6)

        assert backend.renew([claim("a")]) == [Renewed(clock.now + 10 * SECOND)]

        for task in "bc":  # the renewed lease of the first one, and that of the next
            clock.advance(10 - MICROSECOND)
            assert isinstance(backend.enter(claim(task)).verdict, Busy)
            clock.advance(MICROSECOND)
            running(backend.enter(claim(task)))

    def test_a_renewal_after_the_end_is_lost_even_if_nobody_took_the_key(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a"))
        clock.advance(10)

        assert backend.renew([claim("a")]) == [NotHeld()]

        running(backend.enter(claim("b")))

    def test_a_renewal_after_a_successor_came_is_lost_and_does_not_touch_it(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a"))
        clock.advance(11)
        backend.enter(claim("b", ttl=5))

        assert backend.renew([claim("a")]) == [NotHeld()]

        clock.advance(5)
        running(backend.enter(claim("c")))

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

        assert verdicts == [NotHeld(), Renewed(end), NotHeld(), NotHeld()]

    def test_a_renewal_undoes_nothing_that_others_write_at_once(self, backend: LockBackend) -> None:
        slots = 2 * RENEWING
        for number in range(RENEWING):
            running(backend.enter(claim(f"stays {number}", limit=slots)))

        through: list[int] = []

        def renew(number: int) -> None:
            try:
                for _ in range(RENEWALS):
                    (renewed,) = backend.renew([claim(f"stays {number}", limit=slots)])
                    assert isinstance(renewed, Renewed)
            finally:
                through.append(number)

        def come_and_go(number: int) -> None:
            for turn in count():
                goes = claim(f"{number} goes {turn}", limit=slots)
                running(backend.enter(goes))
                assert isinstance(backend.leave(goes, Outcome.DONE).verdict, Left)
                if len(through) == RENEWING:
                    return

        at_once(slots, lambda number: (renew if number < RENEWING else come_and_go)(number))

        holders = sorted(holder.task for holder in backend.peek("key").holders)
        assert holders == [f"stays {number}" for number in range(RENEWING)]

    def test_its_own_clock_counts_microseconds(self, url: str, options: BackendOptions) -> None:
        with closing(self.backend_class.from_url(url, replace(options, clock=None))) as backend:
            running(backend.enter(claim("a")))
            park(backend, "b")

            now = backend.now()
            assert abs(now - wall_clock()) < DAY * SECOND
            assert abs(backend.peek("key").holders[0].since - now) < MINUTE * SECOND
            if Trait.LEASE_PER_TASK in backend.traits:  # that of a process may be shorter
                (renewed,) = backend.renew([claim("a")])
                assert isinstance(renewed, Renewed)
                assert abs(renewed.expires - now) < MINUTE * SECOND
            assert 0 < (backend.sweep().next_in or 0) <= MINUTE

            backend.swap("name", None, b"short", SECOND // 100)
            until = time.monotonic() + SOON
            while backend.swap("name", None, None, 1) is not None:
                assert time.monotonic() < until
