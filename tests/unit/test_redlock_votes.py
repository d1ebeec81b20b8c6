"""Majorities, slots and tokens of a Redlock, without a node."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dlock.core.state import Claim, Holder, Mode
from celery_dlock.stores.redlock.votes import (
    decided,
    excludes,
    held_until,
    majority_of,
    silence,
    slot_for,
    token_for,
)
from celery_dlock.stores.redlock.wire import Look

NOW = 1_000_000


def mine(limit: int = 1, mode: Mode = Mode.EXCLUSIVE) -> Claim:
    return Claim("key", "mine", "1", 10, mode, limit)


def holder(
    task: str, slot: int = 0, limit: int = 1, token: int = 1, mode: Mode = Mode.EXCLUSIVE
) -> Holder:
    return Holder(task, "1", mode, limit, slot, token, 0, NOW + 10)


def look(
    *holders: Holder, votes: bool = True, counter: int = 0, now: int = NOW, longest: int = 0
) -> Look:
    return Look(votes, True, b"", now, counter, longest, holders)


@pytest.mark.parametrize(("nodes", "majority"), [(3, 2), (4, 3), (5, 3), (6, 4), (7, 4)])
def test_two_majorities_have_a_node_in_common(nodes: int, majority: int) -> None:
    assert majority_of(nodes) == majority
    several = [set(one) for one in combinations(range(nodes), majority)]
    assert all(one & other for one in several for other in several)


def test_a_count_is_decided_when_those_that_are_missing_change_nothing() -> None:
    assert decided(yes=3, pending=2, nodes=5)
    assert not decided(yes=2, pending=1, nodes=5)
    assert decided(yes=1, pending=1, nodes=5)
    assert not decided(yes=0, pending=3, nodes=5)


def test_the_end_of_a_lease_is_when_a_majority_has_it_no_more() -> None:
    assert held_until([50, 10, 40, 30, 20], 5) == 30
    assert held_until([10, 20, 30], 5) == 10


Claims = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 5), st.sampled_from(Mode)), min_size=1, max_size=8
)


@given(Claims)
def test_of_any_that_do_not_exclude_each_other_there_are_no_more_than_the_smallest_limit(
    wishes: list[tuple[int, int, Mode]],
) -> None:
    held: list[Holder] = []
    for number, (limit, slot, mode) in enumerate(wishes):
        claim = Claim("key", f"task {number}", "1", 10, mode, limit)
        if slot < limit and not any(excludes(other, claim, slot) for other in held):
            held.append(holder(claim.task, slot, limit, mode=mode))

    if any(one.mode is Mode.EXCLUSIVE for one in held):
        assert len(held) <= min(one.limit for one in held)
        assert len({one.slot for one in held}) == len(held)
        assert {one.mode for one in held} == {Mode.EXCLUSIVE}


def test_who_holds_does_not_exclude_itself() -> None:
    assert not excludes(holder("mine"), mine(), 0)
    assert excludes(holder("other"), mine(), 0)


def test_the_slot_is_the_one_it_has_then_the_wanted_one_then_any_that_can_be_won() -> None:
    taken = look(holder("other", slot=0, limit=3))
    own = look(holder("mine", slot=2, limit=3))

    assert slot_for(mine(3), [look(), look()], 3, wanted=1) == 1
    assert slot_for(mine(3), [own, look()], 3, wanted=1) == 2
    assert slot_for(mine(3), [taken, taken], 3, wanted=0, choose=max) == 2
    assert slot_for(mine(3), [taken, taken], 3, wanted=0, choose=min) == 1


def test_a_slot_that_a_minority_knows_to_be_taken_can_be_won() -> None:
    taken, silent = look(holder("other")), look(votes=False)

    assert slot_for(mine(), [taken, look(), look()], 3, wanted=None) == 0
    assert slot_for(mine(), [taken, silent, look()], 3, wanted=None) is None
    assert slot_for(mine(), [taken, taken, look()], 3, wanted=0) is None
    # Who has not been heard may be for it.
    assert slot_for(mine(), [taken, look()], 3, wanted=None) == 0


def test_a_token_is_larger_than_all_that_a_majority_has_heard_of() -> None:
    heard = [look(counter=NOW + 7), look(counter=NOW + 3)]

    assert token_for(mine(), 0, heard) == NOW + 8


def test_a_token_is_no_smaller_than_the_time_of_half_of_the_nodes() -> None:
    clocks = [look(now=NOW), look(now=NOW + 50), look(now=2**60)]

    assert token_for(mine(), 0, clocks) == NOW + 50


@given(st.integers(0, 2**50), st.integers(1, 20))
def test_slots_that_are_given_at_the_same_time_have_different_tokens(
    counter: int, limit: int
) -> None:
    tokens = {token_for(mine(limit), slot, [look(counter=counter)]) for slot in range(limit)}

    assert len(tokens) == limit
    assert min(tokens) > counter


def test_a_token_that_it_has_in_the_slot_already_is_kept() -> None:
    heard = [look(holder("mine", slot=1, limit=2, token=41), counter=NOW + 7), look()]

    assert token_for(mine(2), 1, heard) == 41
    assert token_for(mine(2), 0, heard) == NOW + 8


def test_a_reader_has_no_token() -> None:
    assert token_for(mine(mode=Mode.SHARED), 0, [look(counter=5)]) == 0


def test_a_node_that_forgot_is_silent_for_the_longest_lease_and_what_clocks_differ_by() -> None:
    assert silence([look(longest=0), look(longest=0)]) == 0
    assert silence([look(longest=100_000), look(longest=30_000_000)]) == 30_302_000
