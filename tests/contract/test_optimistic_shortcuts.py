"""The commits of the common case are those that the rules would come to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from celery_dlock.core import machine
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
    """``None`` if the key is not taken, or not that alone."""
    found = Loaded(NOW)
    step = machine.enter(found.state, claim, NOW, -1)
    more = claim.cooldown or claim.gives_way
    is_alone = not (step.wakes or step.state.waiting or more)
    if not isinstance(step.verdict, Run) or not is_alone:
        return None
    assert step.verdict == Run(0, -1 if step.verdict.token else 0)
    return Saving(claim, found, step, leased=True).commit(b"message", {})


@given(claim=claims)
def test_a_free_key_is_taken_as_by_the_rules(claim: Claim) -> None:
    assert taken_free(claim, row_of(claim), NOW) == by_the_rules_taken(claim)


@given(claim=claims, outcome=st.sampled_from(Outcome))
def test_it_is_given_back_as_by_the_rules(claim: Claim, outcome: Outcome) -> None:
    claim = replace(claim, keep=False)
    taken = by_the_rules_taken(claim)
    assume(taken is not None and taken.version_row is not None)
    assert taken is not None
    assert taken.version_row is not None
    version_row = Row(taken.version_row, "stamp", 7)
    record = decode(version_row.value)
    (holder,) = record.holders
    holder = replace(holder, expires=NOW + holder.expires)
    found = Loaded(NOW, version_row, record, rows={claim.owner: Row(b"", "", 7)})
    found.state = as_state(record, (holder,), [], NOW)
    step = machine.leave(found.state, claim, outcome, NOW)

    shortcut = left_alone(claim, row_of(claim), outcome, version_row, NOW)

    if shortcut is None:
        assert claim.successor or outcome not in (Outcome.DONE, Outcome.OVER)
    else:
        assert shortcut == Saving(claim, found, step, leased=True).commit(None, {})
        assert step.verdict == Left(is_done(claim, outcome))
        assert step.wakes == ()


@pytest.mark.parametrize("outcome", [Outcome.REPEAT, Outcome.ABANDONED, Outcome.UNUSED])
def test_what_has_to_stay_is_left_to_the_rules(outcome: Outcome) -> None:
    claim = Claim("key", "task", "1", 1_000_000)
    assert left_alone(claim, row_of(claim), outcome, Row(b"", "", 7), NOW) is None
