"""Who holds a key: one at a time or as many as may, with a token, while the lease lasts."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from celery_dlock.core.state import Busy, Left, NotHeld, Outcome, Park, Renewed, Run, Same
from celery_dlock.stores.base import Guarantee, LockBackend, Trait
from celery_dlock.testing.contract.words import (
    DAY,
    PLACE,
    QUEUE,
    SECOND,
    SHARED,
    StoreUnderTest,
    claim,
    park,
    running,
    woken,
)
from celery_dlock.testing.project import ManualClock


class Exclusion(StoreUnderTest):
    """One holder at a time, and nobody frees what is another's."""

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

    def test_leaving_twice_releases_nothing_of_the_next_holder(self, backend: LockBackend) -> None:
        backend.enter(claim("a"))
        backend.leave(claim("a"), Outcome.OVER)
        backend.enter(claim("b"))

        assert isinstance(backend.leave(claim("a"), Outcome.OVER).verdict, NotHeld)

        assert isinstance(backend.enter(claim("c")).verdict, Busy)

    def test_another_delivery_of_the_same_task_releases_nothing(self, backend: LockBackend) -> None:
        backend.enter(claim("a", "first"))

        verdict = backend.leave(claim("a", "second"), Outcome.OVER).verdict

        assert isinstance(verdict, NotHeld)
        assert isinstance(backend.enter(claim("b")).verdict, Busy)

    def test_another_task_with_the_same_nonce_releases_nothing(self, backend: LockBackend) -> None:
        backend.enter(claim("a"))

        assert isinstance(backend.leave(claim("b"), Outcome.OVER).verdict, NotHeld)

        assert isinstance(backend.enter(claim("c")).verdict, Busy)

    def test_leaving_a_key_that_nobody_holds_is_lost(self, backend: LockBackend) -> None:
        assert backend.leave(claim("a"), Outcome.OVER).verdict == NotHeld(carried=False)

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


def token(backend: LockBackend, task: str, nonce: str = "1", **others: Any) -> int:
    return running(backend.enter(claim(task, nonce, **others))).token


def shown(backend: LockBackend) -> list[int]:
    return [holder.token for holder in backend.peek("key").holders]


class Tokens(StoreUnderTest):
    """The fencing token: larger with every later grant, and fixed for as long as one lasts."""

    def test_a_token_is_a_positive_integer_below_two_to_the_53(self, backend: LockBackend) -> None:
        assert 0 < token(backend, "a") < 2**53

    def test_a_hundred_grants_within_one_instant_grow_strictly(self, backend: LockBackend) -> None:
        tokens: list[int] = []
        for number in range(100):
            tokens.append(token(backend, f"task {number}"))
            backend.leave(claim(f"task {number}"), Outcome.DONE)

        assert all(earlier < later for earlier, later in pairwise(tokens))

    def test_a_token_grows_after_a_lease_has_ended(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        first = token(backend, "a")
        clock.advance(11)

        assert token(backend, "b") > first

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

    def test_a_task_whose_turn_was_woken_gets_a_larger_token(self, backend: LockBackend) -> None:
        first = token(backend, "a")
        park(backend, "b")
        backend.leave(claim("a"), Outcome.OVER)

        assert token(backend, "b", wait=QUEUE) > first

    def test_a_token_stays_the_same_over_a_renewal(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        first = token(backend, "a", limit=2)
        token(backend, "b", limit=2)
        clock.advance(5)

        backend.renew([claim("a", limit=2)])

        assert min(shown(backend)) == first
        assert token(backend, "a", limit=2) == first

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


MICROSECOND = 0.000_001


class Renewal(StoreUnderTest):
    """Leases: they end by themselves, a renewal moves the end, and an ended one stays ended."""

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


class Sharing(StoreUnderTest):
    """More than one at once: readers together, and the slots of ``limit=N``."""

    def test_readers_hold_the_key_together(self, backend: LockBackend) -> None:
        for task in "abc":
            running(backend.enter(claim(task, mode=SHARED)))

        assert {h.task for h in backend.peek("key").holders} == set("abc")

    def test_a_writer_does_not_join_a_reader(self, backend: LockBackend) -> None:
        backend.enter(claim("reader", mode=SHARED))

        assert isinstance(backend.enter(claim("writer")).verdict, Busy)

    def test_a_reader_does_not_join_a_writer(self, backend: LockBackend) -> None:
        backend.enter(claim("writer"))

        assert isinstance(backend.enter(claim("reader", mode=SHARED)).verdict, Busy)

    def test_a_writer_waits_for_the_last_reader(self, backend: LockBackend) -> None:
        readers = [claim(task, mode=SHARED) for task in "ab"]
        for reader in readers:
            backend.enter(reader)

        backend.leave(readers[0], Outcome.OVER)
        assert isinstance(backend.enter(claim("writer")).verdict, Busy)
        backend.leave(readers[1], Outcome.OVER)
        running(backend.enter(claim("writer")))

    def test_a_reader_that_leaves_releases_nothing_of_another(self, backend: LockBackend) -> None:
        for task in "ab":
            backend.enter(claim(task, mode=SHARED))

        for _ in range(2):
            backend.leave(claim("a", mode=SHARED), Outcome.OVER)

        assert [h.task for h in backend.peek("key").holders] == ["b"]

    def test_a_waiting_writer_is_not_starved_by_later_readers(self, backend: LockBackend) -> None:
        backend.enter(claim("early", mode=SHARED))
        backend.enter(claim("writer", wait=PLACE))

        assert isinstance(backend.enter(claim("late", mode=SHARED)).verdict, Busy)

        backend.leave(claim("early", mode=SHARED), Outcome.OVER)
        running(backend.enter(claim("writer", wait=PLACE)))

    def test_a_parked_writer_is_not_starved_by_later_readers(self, backend: LockBackend) -> None:
        early = claim("early", mode=SHARED)
        backend.enter(early)
        park(backend, "writer")

        late = claim("late", mode=SHARED, wait=QUEUE)
        assert backend.enter(late, b"late").verdict == Park()

        assert woken(backend.leave(early, Outcome.OVER)) == ["writer"]

    def test_parked_readers_are_woken_together_and_up_to_the_next_writer(
        self, backend: LockBackend
    ) -> None:
        backend.enter(claim("writer"))
        park(backend, "r1", "r2", mode=SHARED)
        park(backend, "second writer")
        park(backend, "r3", mode=SHARED)

        assert woken(backend.leave(claim("writer"), Outcome.OVER)) == ["r1", "r2"]

    def test_a_limit_gives_each_holder_a_slot_of_its_own(self, backend: LockBackend) -> None:
        slots = [running(backend.enter(claim(task, limit=3))).slot for task in "abc"]

        assert slots == [0, 1, 2]
        assert isinstance(backend.enter(claim("d", limit=3)).verdict, Busy)

    def test_a_slot_that_was_left_is_given_to_the_next(self, backend: LockBackend) -> None:
        for task in "abc":
            backend.enter(claim(task, limit=3))
        backend.leave(claim("b", limit=3), Outcome.OVER)

        assert running(backend.enter(claim("d", limit=3))).slot == 1
        assert isinstance(backend.enter(claim("e", limit=3)).verdict, Busy)

    def test_leaving_a_slot_twice_makes_room_once(self, backend: LockBackend) -> None:
        for task in "ab":
            backend.enter(claim(task, limit=2))
        for _ in range(2):
            backend.leave(claim("a", limit=2), Outcome.OVER)

        running(backend.enter(claim("c", limit=2)))
        assert isinstance(backend.enter(claim("d", limit=2)).verdict, Busy)

    def test_a_limit_that_was_lowered_counts_while_both_versions_run(
        self, backend: LockBackend
    ) -> None:
        backend.enter(claim("old", limit=3))
        assert isinstance(backend.enter(claim("new", limit=1)).verdict, Busy)

        backend.leave(claim("old", limit=3), Outcome.OVER)
        backend.enter(claim("new", limit=1))
        assert isinstance(backend.enter(claim("old again", limit=3)).verdict, Busy)

    def test_a_free_slot_wakes_one_parked_task_and_two_wake_two(self, backend: LockBackend) -> None:
        for task in "ab":
            backend.enter(claim(task, limit=2))
        park(backend, "c", "d", "e", limit=2)

        assert woken(backend.leave(claim("a", limit=2), Outcome.OVER)) == ["c"]
        assert woken(backend.leave(claim("b", limit=2), Outcome.OVER)) == ["d"]
