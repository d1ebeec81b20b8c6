"""Taking, keeping and giving back: one claim and its lease."""

from __future__ import annotations

import pytest

from celery_dlock.core import machine
from celery_dlock.core.state import Busy, KeyState, Left, NotHeld, Outcome, Renewed, Run, Same
from tests.unit.one_key import START, TTL, OneKey, claim


@pytest.fixture
def key() -> OneKey:
    return OneKey()


def test_a_free_key_is_taken_with_the_token_of_this_grant(key: OneKey) -> None:
    assert key.enter(claim("a")) == Run(slot=0, token=1)
    assert key.running == ["a"]


def test_where_no_token_is_handed_in_there_is_none() -> None:
    assert machine.enter(KeyState(), claim("a"), START).verdict == Run(slot=0, token=0)


def test_a_taken_key_is_refused_and_says_who_has_it_and_for_how_long(key: OneKey) -> None:
    # Given a that holds the key, And 12 seconds pass
    key.enter(claim("a"))
    key.passes(12_000_000)

    verdict = key.enter(claim("b"))

    assert isinstance(verdict, Busy)
    assert verdict.holder is not None
    assert verdict.holder.task == "a"
    assert verdict.left == TTL - 12_000_000
    assert key.running == ["a"]


def test_leaving_frees_the_key_and_the_next_grant_has_a_newer_token(key: OneKey) -> None:
    key.enter(claim("a"))

    assert key.leave(claim("a")) == Left(carried=True)

    assert key.enter(claim("b")) == Run(slot=0, token=2)


def test_leaving_twice_changes_nothing(key: OneKey) -> None:
    key.enter(claim("a"))
    key.leave(claim("a"))
    key.enter(claim("b"))
    after = key.state

    assert key.leave(claim("a")) == NotHeld(carried=True)

    assert key.state == after


def test_another_delivery_of_the_same_task_releases_nothing(key: OneKey) -> None:
    # Given the first delivery of a, which runs
    key.enter(claim("a", "first"))

    # When its copy leaves
    verdict = key.leave(claim("a", "second"), Outcome.OVER)

    # Then it had nothing, and the first has the key
    assert isinstance(verdict, NotHeld)
    assert key.running == ["a"]


def test_a_copy_of_what_runs_is_told_so(key: OneKey) -> None:
    key.enter(claim("a", "first"))
    key.passes(1)

    verdict = key.enter(claim("a", "second"))

    assert isinstance(verdict, Same)
    assert verdict.holder.nonce == "first"
    assert verdict.left == TTL - 1


def test_a_lost_reply_is_asked_for_again_with_the_same_answer(key: OneKey) -> None:
    first = key.enter(claim("a"))

    assert key.enter(claim("a")) == first


def test_who_asks_again_has_a_whole_lease_from_then_on(key: OneKey) -> None:
    # Given a whose answer was lost, And most of its lease is over
    key.enter(claim("a"))
    key.passes(TTL - 1)

    # When it asks again, and trusts its lease from this request on
    key.enter(claim("a"))
    key.passes(TTL - 1)

    # Then nobody else gets the key in that time
    assert isinstance(key.enter(claim("b")), Busy)


def test_a_lease_ends_at_its_instant_and_not_before(key: OneKey) -> None:
    key.enter(claim("a"))
    key.passes(TTL - 1)
    assert isinstance(key.enter(claim("b")), Busy)

    key.passes(1)

    assert key.enter(claim("b")) == Run(slot=0, token=3)


def test_a_renewed_lease_ends_a_ttl_after_the_renewal(key: OneKey) -> None:
    key.enter(claim("a"))
    key.passes(TTL // 2)

    assert key.renew(claim("a")) == Renewed(key.now + TTL)

    key.passes(TTL - 1)
    assert isinstance(key.enter(claim("b")), Busy)


def test_a_shorter_ttl_never_shortens_a_lease(key: OneKey) -> None:
    key.enter(claim("a"))

    verdict = key.renew(claim("a", ttl=1))

    assert verdict == Renewed(key.now + TTL)


def test_a_lease_that_has_ended_stays_ended(key: OneKey) -> None:
    # Given a lease that ended a moment ago, And nobody else has asked for the key
    key.enter(claim("a"))
    key.passes(TTL)

    assert key.renew(claim("a")) == NotHeld()


def test_only_the_delivery_that_holds_renews(key: OneKey) -> None:
    key.enter(claim("a", "first"))

    assert key.renew(claim("a", "second")) == NotHeld()


def test_who_comes_late_but_was_not_replaced_still_leaves(key: OneKey) -> None:
    # Given a lease that has ended, And nobody has taken the key since
    key.enter(claim("a"))
    key.passes(2 * TTL)

    assert key.leave(claim("a")) == Left(carried=True)


def test_reaping_drops_what_has_ended_and_remembers_the_lost_run(key: OneKey) -> None:
    key.enter(claim("a"))
    key.passes(TTL)

    key.reap()

    assert key.state == KeyState(lost=(("a", 1),))


def test_each_task_has_its_own_count_of_lost_runs(key: OneKey) -> None:
    key.enter(claim("a", limit=2))
    key.enter(claim("b", limit=2))
    key.passes(TTL)

    key.reap()

    assert dict(key.state.lost) == {"a": 1, "b": 1}


def test_lost_runs_are_counted_until_the_task_is_done(key: OneKey) -> None:
    # Given a that lost two runs: one to time, one to a kill
    key.enter(claim("a", "first"))
    key.passes(TTL)
    key.enter(claim("a", "second"))
    key.leave(claim("a", "second"), Outcome.ABANDONED)
    assert list(key.state.lost) == [("a", 2)]

    # When the third one ends well
    key.enter(claim("a", "third"))
    key.leave(claim("a", "third"))

    assert dict(key.state.lost) == {}
