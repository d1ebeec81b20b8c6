"""The commits of the common case are those that the rules would come to."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from celery_dlock.core import machine
from celery_dlock.core.plain import is_plain
from celery_dlock.core.state import Claim, Left, Outcome, Run
from celery_dlock.stores.consensus.load import Loaded
from celery_dlock.stores.consensus.record import as_state, decode
from celery_dlock.stores.consensus.rows import Commit, Kind, Name, Row
from celery_dlock.stores.consensus.save import Saving, is_done, left_alone, taken_free
from tests.contract.twins import claims

NOW = 1_795_166_707_336_123


def row_of(claim: Claim) -> Name:
    return Name(Kind.HOLDER, claim.key, claim.owner)


def by_the_rules_taken(claim: Claim) -> Commit | None:
    """``None`` if the key is not taken."""
    found = Loaded(NOW)
    step = machine.enter(found.state, claim, NOW, -1)
    if not isinstance(step.verdict, Run):
        return None
    assert step.verdict == Run(0, -1 if step.verdict.token else 0)
    return Saving(claim, found, step, leased=True).commit(b"message", {})


@given(claim=claims)
def test_a_free_key_is_taken_as_by_the_rules(claim: Claim) -> None:
    taken = taken_free(claim, row_of(claim), NOW)

    assert (taken is not None) is is_plain(claim)
    assert taken is None or taken == by_the_rules_taken(claim)


@given(claim=claims.filter(is_plain), leaves=claims, outcome=st.sampled_from(Outcome))
def test_it_is_given_back_as_by_the_rules(claim: Claim, leaves: Claim, outcome: Outcome) -> None:
    leaves = replace(leaves, task=claim.task, nonce=claim.nonce)
    taken = by_the_rules_taken(claim)
    assert taken is not None
    assert taken.version_row is not None
    version_row = Row(taken.version_row, "stamp", 7)
    record = decode(version_row.value)
    (holder,) = record.holders
    holder = replace(holder, expires=NOW + holder.expires)
    found = Loaded(NOW, version_row, record, rows={claim.owner: Row(b"", "", 7)})
    found.state = as_state(record, (holder,), [], NOW)
    step = machine.leave(found.state, leaves, outcome, NOW)

    shortcut = left_alone(leaves, row_of(leaves), outcome, version_row, NOW)

    ends = outcome in (Outcome.DONE, Outcome.OVER)
    assert (shortcut is not None) is (ends and is_plain(leaves))
    if shortcut is not None:
        assert shortcut == Saving(leaves, found, step, leased=True).commit(None, {})
        assert step.verdict == Left(is_done(leaves, outcome))
        assert step.wakes == ()
