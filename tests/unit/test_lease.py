"""A lease is trusted from the moment of asking, never for longer than the store was asked for."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from celery_dlock.core.lease import Lease, Term, margin, ttl_to_trust
from celery_dlock.core.state import Claim, Mode
from celery_dlock.errors import ConfigurationError, LockLost

TTL = 30.0


@dataclass
class Monotonic:
    """Seconds that pass when told to."""

    now: float = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def monotonic() -> Monotonic:
    return Monotonic()


def term(
    monotonic: Monotonic,
    key: str = "order:42",
    *,
    token: int = 7,
    slot: int = 0,
    ttl: float = TTL,
    mode: Mode = Mode.EXCLUSIVE,
    sent_at: float | None = None,
) -> Term:
    claim = Claim(key, "task", "nonce", ttl=round(ttl * 1_000_000), mode=mode)
    sent_at = monotonic.now if sent_at is None else sent_at
    return Term(claim, slot, token, sent_at, monotonic)


def lease(*terms: Term) -> Lease:
    return Lease(terms, "strict")


def test_trust_is_counted_from_the_sending_so_a_slow_answer_does_not_stretch_it(
    monotonic: Monotonic,
) -> None:
    sent_at = monotonic.now
    monotonic.now += 20  # the answer took its time

    held = lease(term(monotonic, sent_at=sent_at))

    assert held.remaining() == pytest.approx(TTL - margin(TTL) - 20)


def test_trust_ends_a_margin_before_the_store_lets_the_next_one_in(monotonic: Monotonic) -> None:
    held = lease(term(monotonic))

    monotonic.now = held.terms[0].trusted_until - 0.001
    assert not held.lost
    assert held.remaining() == pytest.approx(0.001)
    monotonic.now = held.terms[0].trusted_until
    assert held.lost


@pytest.mark.parametrize("seconds", [0.5, 30.0, 3600.0])
def test_what_is_to_be_trusted_for_some_time_is_asked_for_a_margin_longer(seconds: float) -> None:
    ttl = ttl_to_trust(seconds)
    assert ttl - margin(ttl) == pytest.approx(seconds)


def test_the_margin_is_the_drift_allowance_of_the_redlock_article() -> None:
    assert margin(30) == pytest.approx(0.302)


def test_a_renewal_counts_from_its_own_sending(monotonic: Monotonic) -> None:
    kept = term(monotonic)
    sent_at = monotonic.now + 10
    monotonic.now += 15

    kept.renewed(sent_at)

    assert lease(kept).remaining() == pytest.approx(TTL - margin(TTL) - 5)


def test_a_renewal_whose_answer_comes_late_does_not_shorten_a_later_one(
    monotonic: Monotonic,
) -> None:
    kept = term(monotonic)
    kept.renewed(monotonic.now + 10)
    until = kept.trusted_until

    kept.renewed(monotonic.now + 5)

    assert kept.trusted_until == until


def test_what_was_lost_stays_lost_whatever_the_store_answers_later(monotonic: Monotonic) -> None:
    kept = term(monotonic)
    held = lease(kept)
    monotonic.now += TTL
    assert held.lost

    kept.renewed(monotonic.now)

    assert held.lost
    assert held.remaining() == 0.0


def test_the_first_reason_of_a_loss_is_the_one_that_is_told(monotonic: Monotonic) -> None:
    kept = term(monotonic)
    kept.lose("the store had given it up")
    kept.lose("max_hold is over")
    monotonic.now += 2 * TTL

    with pytest.raises(LockLost, match="the store had given it up"):
        lease(kept).check()


def test_a_lease_of_no_store_cannot_be_extended(monotonic: Monotonic) -> None:
    with pytest.raises(ConfigurationError, match="no store"):
        lease(term(monotonic)).extend(10)


def test_the_store_is_asked_to_keep_all_of_its_terms_for_longer(monotonic: Monotonic) -> None:
    asked: list[object] = []
    own, parent = term(monotonic, "order:42"), term(monotonic, "shop")
    held = Lease((own, parent), "strict", extend=lambda *what: asked.append(what), parents=["shop"])

    held.extend(10)

    assert asked == [((own, parent), 10)]
    assert (held.guarantee, held.keys) == ("strict", ("order:42",))


def test_it_is_uncertain_from_when_its_renewal_is_overdue_until_it_is_renewed_or_lost(
    monotonic: Monotonic,
) -> None:
    kept = term(monotonic)
    held = lease(kept, term(monotonic, "other", ttl=600))
    monotonic.now += TTL / 3  # a renewal is due, and may fail once
    assert not held.uncertain

    monotonic.now += TTL / 6
    assert (held.uncertain, held.lost) == (True, False)
    held.check()
    kept.renewed(monotonic.now)
    assert not held.uncertain

    monotonic.now += TTL
    assert (held.uncertain, held.lost) == (False, True)


def test_it_is_uncertain_while_the_connection_that_keeps_it_is_interrupted(
    monotonic: Monotonic,
) -> None:
    assert Lease((term(monotonic),), "strict", lambda seconds: seconds > 0).uncertain


def test_what_is_extended_is_certain_until_that_time_is_nearly_over(monotonic: Monotonic) -> None:
    kept = term(monotonic)
    kept.renewed(monotonic.now, 10 * TTL)
    monotonic.now += 9 * TTL
    assert not kept.uncertain
    monotonic.now += TTL / 2
    assert kept.uncertain


def test_checking_waits_for_the_store_as_long_as_there_is_trust(monotonic: Monotonic) -> None:
    asked: list[float] = []

    def interrupted(seconds: float) -> bool:
        asked.append(seconds)
        return False

    held = Lease((term(monotonic, "order:42"),), "strict", interrupted)

    with pytest.raises(LockLost) as caught:
        held.check()

    assert asked == [pytest.approx(TTL - margin(TTL))]
    assert caught.value.key == "order:42"
    assert caught.value.reason == "the connection to the store is interrupted"


def test_a_loss_is_told_by_whoever_comes_first_with_it(monotonic: Monotonic) -> None:
    kept = term(monotonic)
    assert [kept.first_to_tell(), kept.first_to_tell()] == [True, False]


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf"), "10", True])
def test_it_is_extended_by_a_number_of_seconds(monotonic: Monotonic, seconds: object) -> None:
    with pytest.raises(ConfigurationError, match=r"extend\(\) must be a number of seconds"):
        lease(term(monotonic)).extend(seconds)  # type: ignore[arg-type]


def test_checking_says_nothing_while_the_lock_can_be_trusted(monotonic: Monotonic) -> None:
    lease(term(monotonic)).check()


def test_checking_names_the_key_and_the_reason(monotonic: Monotonic) -> None:
    held = lease(term(monotonic, "order:42"))
    monotonic.now += TTL

    with pytest.raises(LockLost) as caught:
        held.check()

    assert (caught.value.key, caught.value.reason) == ("order:42", "it was not renewed in time")


def test_what_remains_never_falls_below_nothing(monotonic: Monotonic) -> None:
    held = lease(term(monotonic))
    monotonic.now += 10 * TTL

    assert held.remaining() == 0.0


def test_several_keys_are_as_good_as_the_one_that_ends_first(monotonic: Monotonic) -> None:
    held = lease(term(monotonic, "a", ttl=30), term(monotonic, "b", ttl=10))

    assert held.ttl == 10
    assert held.remaining() == pytest.approx(10 - margin(10))


def test_one_key_of_several_lost_is_all_lost(monotonic: Monotonic) -> None:
    kept, lost = term(monotonic, "a"), term(monotonic, "b")
    held = lease(kept, lost)
    lost.lose("the store had given it up")

    assert held.lost
    assert held.remaining() == 0.0
    with pytest.raises(LockLost) as caught:
        held.check()
    assert caught.value.key == "b"


def test_several_keys_have_a_token_each_and_no_single_one(monotonic: Monotonic) -> None:
    held = lease(term(monotonic, "a", token=7), term(monotonic, "b", token=9))

    assert held.keys == ("a", "b")
    assert held.key == "a"
    assert held.fencing_tokens == {"a": 7, "b": 9}
    with pytest.raises(ConfigurationError, match="use fencing_tokens"):
        _ = held.fencing_token


def test_one_key_has_one_token(monotonic: Monotonic) -> None:
    held = lease(term(monotonic, token=7))

    assert held.fencing_token == 7
    assert held.owner == "task|nonce"


def test_a_read_lock_has_no_token(monotonic: Monotonic) -> None:
    held = lease(term(monotonic, token=0, mode=Mode.SHARED))

    assert held.fencing_tokens == {}
    with pytest.raises(ConfigurationError, match="a read lock has none"):
        _ = held.fencing_token


def test_a_read_lock_beside_a_write_lock_leaves_the_token_of_the_latter(
    monotonic: Monotonic,
) -> None:
    held = lease(term(monotonic, "a", token=0, mode=Mode.SHARED), term(monotonic, "b", token=9))

    assert held.fencing_token == 9


def test_the_tokens_cannot_be_altered(monotonic: Monotonic) -> None:
    with pytest.raises(TypeError):
        lease(term(monotonic)).fencing_tokens["order:42"] = 8  # type: ignore[index]


def test_a_resource_is_named_by_its_key_and_from_the_second_on_by_its_slot(
    monotonic: Monotonic,
) -> None:
    names = [term(monotonic, "gate", slot=slot).resource for slot in range(3)]

    assert names == ["gate", "gate#1", "gate#2"]


def test_a_lease_shows_its_keys_its_owner_and_what_remains(monotonic: Monotonic) -> None:
    held = lease(term(monotonic, "a"), term(monotonic, "b"))

    assert repr(held) == "<Lease a, b of task|nonce: 29.7 s>"
    monotonic.now += TTL
    assert repr(held) == "<Lease a, b of task|nonce: lost>"
