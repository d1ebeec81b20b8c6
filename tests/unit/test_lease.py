"""A lease is trusted from the moment of asking, never for longer than the store was asked for."""

from __future__ import annotations

import pytest

from celery_dlock.core.lease import NOT_RENEWED, Lease, Term, margin, ttl_to_trust
from celery_dlock.core.state import Claim, Mode
from celery_dlock.errors import ConfigurationError, LockLost
from tests.services.monotonic import Monotonic

TTL = 30.0


@pytest.fixture
def clock() -> Monotonic:
    return Monotonic()


def term(
    clock: Monotonic,
    key: str = "order:42",
    *,
    token: int = 7,
    slot: int = 0,
    ttl: float = TTL,
    mode: Mode = Mode.EXCLUSIVE,
) -> Term:
    claim = Claim(key, "task", "nonce", ttl=round(ttl * 1_000_000), mode=mode)
    return Term(claim, slot, token, clock.now, clock)


def lease(*terms: Term) -> Lease:
    return Lease(terms, "strict")


def test_trust_is_counted_from_the_sending_so_a_slow_answer_does_not_stretch_it(
    clock: Monotonic,
) -> None:
    sent = term(clock)

    clock.advance(20)  # the answer took its time

    assert lease(sent).remaining() == pytest.approx(TTL - margin(TTL) - 20)


def test_trust_ends_a_margin_before_the_store_lets_the_next_one_in(clock: Monotonic) -> None:
    held = lease(term(clock))
    clock.now = held.terms[0].trusted_until - 0.001
    assert not held.lost
    assert held.remaining() == pytest.approx(0.001)

    clock.now = held.terms[0].trusted_until

    assert held.lost


@pytest.mark.parametrize("seconds", [0.5, 30.0, 3600.0])
def test_what_is_to_be_trusted_for_some_time_is_asked_for_a_margin_longer(seconds: float) -> None:
    ttl = ttl_to_trust(seconds)

    assert ttl - margin(ttl) == pytest.approx(seconds)


def test_the_margin_is_the_drift_allowance_of_the_redlock_article() -> None:
    assert margin(30) == pytest.approx(0.302)


def test_a_renewal_counts_from_its_own_sending(clock: Monotonic) -> None:
    kept = term(clock)
    sent_at = clock.now + 10
    clock.advance(15)

    kept.renewed(sent_at)
    kept.renewed(sent_at - 5)

    assert lease(kept).remaining() == pytest.approx(TTL - margin(TTL) - 5)


def test_what_was_lost_stays_lost_whatever_the_store_answers_later(clock: Monotonic) -> None:
    kept = term(clock)
    held = lease(kept)
    clock.advance(10 * TTL)
    assert held.lost

    kept.renewed(clock.now)

    assert held.lost
    assert held.remaining() == 0.0


def test_the_first_reason_of_a_loss_is_the_one_that_is_told(clock: Monotonic) -> None:
    kept = term(clock)
    kept.lose("the store had given it up")
    kept.lose("max_hold is over")
    clock.advance(2 * TTL)

    with pytest.raises(LockLost, match="the store had given it up"):
        lease(kept).check()


def test_a_released_lease_is_trusted_no_more(clock: Monotonic) -> None:
    kept = term(clock)
    held = lease(kept)
    assert (kept.leaves, kept.replaced, held.replaced) == (False, None, None)

    held.give_back()

    assert (held.lost, held.remaining()) == (True, 0.0)
    with pytest.raises(LockLost, match="it was released"):
        held.check()


def test_a_lease_of_nothing_lasts_for_nothing() -> None:
    assert (lease().ttl, lease().remaining()) == (0.0, 0.0)


def test_a_loss_is_told_by_whoever_comes_first_with_it(clock: Monotonic) -> None:
    kept = term(clock)

    assert [kept.first_to_tell(), kept.first_to_tell()] == [True, False]


def test_it_is_uncertain_while_its_renewal_is_overdue(clock: Monotonic) -> None:
    kept = term(clock)
    held = lease(kept, term(clock, "other", ttl=600))

    clock.advance(TTL / 3)  # a renewal is due, and may fail once
    assert not held.uncertain
    clock.advance(TTL / 6)
    assert (held.uncertain, held.lost) == (True, False)
    held.check()

    kept.renewed(clock.now)
    assert not held.uncertain
    clock.advance(TTL)
    assert (held.uncertain, held.lost) == (False, True)


def test_it_is_uncertain_while_its_connection_is_interrupted(clock: Monotonic) -> None:
    assert Lease((term(clock),), "strict", lambda seconds: seconds > 0).uncertain


def test_checking_waits_for_the_store_as_long_as_there_is_trust(clock: Monotonic) -> None:
    asked: list[float] = []

    def interrupted(seconds: float) -> bool:
        asked.append(seconds)
        return False

    with pytest.raises(LockLost) as caught:
        Lease((term(clock),), "strict", interrupted).check()

    assert asked == [pytest.approx(TTL - margin(TTL))]
    assert caught.value.key == "order:42"
    assert caught.value.reason == "the connection to the store is interrupted"


def test_checking_names_the_key_and_the_reason_once_the_lock_is_lost(clock: Monotonic) -> None:
    held = lease(term(clock))
    held.check()
    clock.advance(TTL)

    with pytest.raises(LockLost) as caught:
        held.check()

    assert (caught.value.key, caught.value.reason) == ("order:42", NOT_RENEWED)


class TestExtending:
    def test_asks_the_store_to_keep_all_of_its_terms_for_longer(self, clock: Monotonic) -> None:
        asked: list[object] = []
        own, parent = term(clock, "order:42"), term(clock, "shop")
        held = Lease((own, parent), "strict", extend=lambda *a: asked.append(a), parents=["shop"])

        held.extend(10)

        assert asked == [((own, parent), 10)]
        assert (held.guarantee, held.keys) == ("strict", ("order:42",))

    def test_keeps_it_certain_until_that_time_is_nearly_over(self, clock: Monotonic) -> None:
        kept = term(clock)
        kept.renewed(clock.now, 10 * TTL)

        clock.advance(9 * TTL)
        assert not kept.uncertain
        clock.advance(TTL / 2)
        assert kept.uncertain

    @pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf"), "10", True])
    def test_takes_a_number_of_seconds(self, clock: Monotonic, seconds: object) -> None:
        with pytest.raises(ConfigurationError, match=r"extend\(\) must be "):
            lease(term(clock)).extend(seconds)  # type: ignore[arg-type]

    def test_needs_a_store(self, clock: Monotonic) -> None:
        with pytest.raises(ConfigurationError, match="no store"):
            lease(term(clock)).extend(10)


class TestSeveralKeys:
    def test_are_as_good_as_the_one_that_ends_first(self, clock: Monotonic) -> None:
        held = lease(term(clock, "a", ttl=30), term(clock, "b", ttl=10))

        assert held.ttl == 10
        assert held.remaining() == pytest.approx(10 - margin(10))

    def test_are_all_lost_with_one_of_them(self, clock: Monotonic) -> None:
        kept, lost = term(clock, "a"), term(clock, "b")
        held = lease(kept, lost)
        lost.lose("the store had given it up")

        assert held.lost
        assert held.remaining() == 0.0
        with pytest.raises(LockLost) as caught:
            held.check()
        assert caught.value.key == "b"

    def test_have_a_token_each_and_no_single_one(self, clock: Monotonic) -> None:
        held = lease(term(clock, "a", token=7), term(clock, "b", token=9))

        assert (held.key, held.keys) == ("a", ("a", "b"))
        assert held.fencing_tokens == {"a": 7, "b": 9}
        with pytest.raises(ConfigurationError, match="use fencing_tokens"):
            _ = held.fencing_token


def test_one_key_has_one_token_that_cannot_be_altered(clock: Monotonic) -> None:
    held = lease(term(clock, token=7))

    assert (held.fencing_token, held.owner) == (7, "task|nonce")
    with pytest.raises(TypeError):
        held.fencing_tokens["order:42"] = 8  # type: ignore[index]


def test_a_read_lock_has_no_token_beside_a_write_lock(clock: Monotonic) -> None:
    reads = term(clock, "a", token=0, mode=Mode.SHARED)

    assert lease(reads).fencing_tokens == {}
    with pytest.raises(ConfigurationError, match="a read lock has none"):
        _ = lease(reads).fencing_token
    assert lease(reads, term(clock, "b", token=9)).fencing_token == 9


def test_a_resource_is_named_by_its_key_and_its_slot(clock: Monotonic) -> None:
    names = [term(clock, "gate", slot=slot).resource for slot in range(3)]

    assert names == ["gate", "gate#1", "gate#2"]


def test_a_lease_shows_its_keys_its_owner_and_what_remains(clock: Monotonic) -> None:
    held = lease(term(clock, "a"), term(clock, "b"))
    assert repr(held) == "<Lease a, b of task|nonce: 29.7 s>"

    clock.advance(TTL)

    assert repr(held) == "<Lease a, b of task|nonce: lost>"
