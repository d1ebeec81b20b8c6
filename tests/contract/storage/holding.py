"""More on holders, tokens and leases than the contract in the package asks of a store."""

from __future__ import annotations

from typing import Any

from celery_dlock.core.state import NotHeld, Renewed, Same
from celery_dlock.testing.contract import holding as shipped
from celery_dlock.testing.contract.words import QUEUE, SECOND, SHARED, claim
from tests.contract.key import MICROSECOND, OVER, Key, KeyTests


class Exclusion(KeyTests, shipped.Exclusion):
    def test_a_holder_says_what_it_is_and_where(self, key: Key) -> None:
        first: dict[str, Any] = {"name": "shop;charge, größer", "where": "worker@web-1:4711"}
        next_one: dict[str, Any] = {"name": "shop.refund", "where": "worker@web-2:12"}

        def seen() -> list[dict[str, Any]]:
            (peeked,), (looked,) = (
                state.holders for state in (key.backend.peek("key"), *key.backend.look(["key"]))
            )
            refused = key.refuses("c").holder
            assert refused is not None
            return [{"name": h.name, "where": h.where} for h in (peeked, looked, refused)]

        key.runs("a", **first)
        assert seen() == [first] * 3
        key.parks("b", **next_one)
        key.renews("a")
        assert seen() == [first] * 3
        key.leaves("a", OVER, **first)
        key.runs("b", wait=QUEUE, **next_one)
        assert seen() == [next_one] * 3

    def test_who_does_not_hold_the_key_releases_nothing(self, key: Key) -> None:
        assert key.leave("a", OVER).verdict == NotHeld(carried=False)
        key.runs("a")

        assert key.leave("b", OVER).verdict == NotHeld(carried=False)  # with the same nonce

        key.refuses("c")

    def test_asking_again_after_a_lost_reply_starts_the_lease_anew(self, key: Key) -> None:
        key.runs("a")
        key.passes(6)
        key.runs("a")
        key.passes(6)

        assert key.refuses("b").left == 4 * SECOND

    def test_another_delivery_of_a_running_task_is_the_same(self, key: Key) -> None:
        key.runs("a", nonce="first")

        verdict = key.asks("a", "second")

        assert isinstance(verdict, Same)
        assert verdict.holder.nonce == "first"
        assert verdict.left == 10 * SECOND

    def test_peeking_shows_the_holder_and_changes_nothing(self, key: Key) -> None:
        assert (key.holders, key.turns, key.waiting, key.parked) == ([], [], [], 0)
        run = key.runs("a")

        for _ in range(2):
            (holder,) = key.backend.peek("key").holders
            assert (holder.task, holder.nonce, holder.token) == ("a", "1", run.token)


class Tokens(KeyTests, shipped.Tokens):
    def test_a_token_grows_with_each_grant_to_whoever_writes(self, key: Key) -> None:
        tokens = [key.runs("a").token]
        key.parks("b")
        key.leaves("a", OVER)
        tokens.append(key.runs("b", wait=QUEUE).token)  # its turn was woken
        key.passes(11)
        tokens.append(key.runs("c").token)  # a lease has ended
        key.leaves("c", OVER)
        assert key.runs("reader", mode=SHARED).token == 0
        key.leaves("reader", OVER, mode=SHARED)
        tokens += [key.runs(task, limit=3).token for task in "def"]

        assert tokens == sorted(set(tokens))

    def test_a_token_stays_the_same_when_the_holder_asks_again(self, key: Key) -> None:
        first, later = (key.runs(task, limit=2).token for task in "ab")
        key.refuses("c")

        assert key.runs("a", limit=2).token == first < later
        assert sorted(h.token for h in key.backend.peek("key").holders) == [first, later]


class Renewal(KeyTests, shipped.Renewal):
    def test_a_renewal_may_ask_for_more_time_and_never_for_less(self, key: Key) -> None:
        key.runs("a")
        key.passes(6)
        end = key.clock.now + 120 * SECOND
        assert key.renews("a", ttl=120) == Renewed(end)

        key.passes(60)
        assert key.renews("a") == key.renews("a", ttl=1) == Renewed(end)

        key.passes(60 - MICROSECOND)
        key.refuses("b")
        key.passes(MICROSECOND)
        key.runs("b")

    def test_who_has_left_and_another_delivery_cannot_renew(self, key: Key) -> None:
        key.runs("a", nonce="left")
        key.leaves("a", OVER, nonce="left")
        key.runs("a", nonce="first")
        key.passes(5)

        for nonce in ("left", "second"):
            assert key.renews("a", nonce) == NotHeld()

        key.passes(5)
        key.runs("b")

    def test_renewals_of_several_holders_of_one_key_all_count(self, key: Key) -> None:
        key.runs("a", "b", limit=2)
        key.passes(5)

        renewed = key.backend.renew([claim(task, limit=2) for task in "ab"])

        assert renewed == [Renewed(key.clock.now + 10 * SECOND)] * 2
        assert key.backend.renew([]) == []
        key.passes(6)
        key.refuses("c", limit=2)
