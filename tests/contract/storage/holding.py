"""More on holders, tokens and leases than the contract in the package asks of a store."""

from __future__ import annotations

from typing import Any

from celery_dlock.core.state import Busy, Left, NotHeld, Outcome, Renewed, Run, Same
from celery_dlock.stores.base import LockBackend
from celery_dlock.testing.contract import holding as shipped
from celery_dlock.testing.contract.holding import MICROSECOND, shown, token
from celery_dlock.testing.contract.words import QUEUE, SECOND, SHARED, claim, park, running
from celery_dlock.testing.project import ManualClock


class Exclusion(shipped.Exclusion):
    def test_a_holder_says_what_it_is_and_where(self, backend: LockBackend) -> None:
        first: dict[str, Any] = {"name": "shop;charge, größer", "where": "worker@web-1:4711"}
        next_one: dict[str, Any] = {"name": "shop.refund", "where": "worker@web-2:12"}

        def told() -> list[dict[str, Any]]:
            (peeked,), (looked,) = backend.peek("key").holders, backend.look(["key"])[0].holders
            verdict = backend.enter(claim("c")).verdict
            assert isinstance(verdict, Busy)
            assert verdict.holder is not None
            found = (peeked, looked, verdict.holder)
            return [{"name": one.name, "where": one.where} for one in found]

        running(backend.enter(claim("a", **first)))
        assert told() == [first] * 3
        backend.enter(claim("b", wait=QUEUE, **next_one), b"message")
        backend.renew([claim("a")])
        assert told() == [first] * 3
        backend.leave(claim("a", **first), Outcome.OVER)
        running(backend.enter(claim("b", wait=QUEUE, **next_one), b"message"))
        assert told() == [next_one] * 3

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

    def test_another_task_with_the_same_nonce_releases_nothing(self, backend: LockBackend) -> None:
        backend.enter(claim("a"))

        assert isinstance(backend.leave(claim("b"), Outcome.OVER).verdict, NotHeld)

        assert isinstance(backend.enter(claim("c")).verdict, Busy)

    def test_leaving_a_key_that_nobody_holds_is_lost(self, backend: LockBackend) -> None:
        assert backend.leave(claim("a"), Outcome.OVER).verdict == NotHeld(carried=False)

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

    def test_peeking_shows_the_holder_and_changes_nothing(self, backend: LockBackend) -> None:
        verdict = backend.enter(claim("a")).verdict
        assert isinstance(verdict, Run)

        for _ in range(2):
            (holder,) = backend.peek("key").holders
            assert (holder.task, holder.nonce, holder.token) == ("a", "1", verdict.token)

    def test_a_key_that_nobody_touched_peeks_empty(self, backend: LockBackend) -> None:
        state = backend.peek("key")

        assert (state.holders, state.grants, state.waiting, state.parked) == ((), (), (), 0)


class Tokens(shipped.Tokens):
    def test_a_token_grows_after_a_lease_has_ended(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        first = token(backend, "a")
        clock.advance(11)

        assert token(backend, "b") > first

    def test_a_task_whose_turn_was_woken_gets_a_larger_token(self, backend: LockBackend) -> None:
        first = token(backend, "a")
        park(backend, "b")
        backend.leave(claim("a"), Outcome.OVER)

        assert token(backend, "b", wait=QUEUE) > first

    def test_a_token_stays_the_same_when_the_holder_asks_again_after_a_later_grant(
        self, backend: LockBackend
    ) -> None:
        first = token(backend, "a", limit=2)
        later = token(backend, "b", limit=2)

        assert token(backend, "a", limit=2) == first < later
        assert sorted(shown(backend)) == [first, later]

    def test_a_refused_task_does_not_change_the_holders_token(self, backend: LockBackend) -> None:
        first = token(backend, "a")
        backend.enter(claim("b"))

        assert token(backend, "a") == first

    def test_slots_of_one_key_have_tokens_of_their_own(self, backend: LockBackend) -> None:
        tokens = [token(backend, task, limit=3) for task in "abc"]

        assert tokens == sorted(set(tokens))

    def test_a_reader_has_no_token(self, backend: LockBackend) -> None:
        assert token(backend, "a", mode=SHARED) == 0

    def test_a_writer_after_readers_has_a_larger_token_than_the_writer_before(
        self, backend: LockBackend
    ) -> None:
        before = token(backend, "a")
        backend.leave(claim("a"), Outcome.OVER)
        token(backend, "b", mode=SHARED)
        backend.leave(claim("b", mode=SHARED), Outcome.OVER)

        assert token(backend, "c") > before


class Renewal(shipped.Renewal):
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

    def test_a_renewal_after_leaving_is_lost(self, backend: LockBackend) -> None:
        backend.enter(claim("a"))
        backend.leave(claim("a"), Outcome.OVER)

        assert backend.renew([claim("a")]) == [NotHeld()]

    def test_another_delivery_cannot_renew(self, backend: LockBackend, clock: ManualClock) -> None:
        backend.enter(claim("a", "first"))
        clock.advance(5)

        assert backend.renew([claim("a", "second")]) == [NotHeld()]

        clock.advance(5)
        running(backend.enter(claim("b")))

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
