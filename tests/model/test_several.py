"""Nobody waits for himself, and nothing stays held, whoever takes which keys in which order."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from celery_dlock.core import edits, state
from celery_dlock.core.state import Claim, KeyState, Mode, WaitMode
from celery_dlock.locks import other_keys
from celery_dlock.locks.manager import LockManager
from celery_dlock.locks.other_keys import OtherKeys
from tests.model import key
from tests.model.key import Violation
from tests.model.several import CRASH, Crowd, Wants, explore_several
from tests.services.planted import planted

A, B = Wants("a"), Wants("b")
A_1, A_2 = (Wants("a", limit=n) for n in (1, 2))
B_1, B_2 = (Wants("b", limit=n) for n in (1, 2))
CHILD, PARENT = Wants("orders/1"), Wants("orders", Mode.SHARED, parent=True)
AUDIT, LAST = Wants("orders"), Wants("z", Mode.SHARED, parent=True)
CRASHES = frozenset({CRASH})

QUICK = (
    Crowd("two keys, written in two orders; 3 tasks", ((A, B), (B, A), (A, B))),
    Crowd("a child and who takes its parent; 1 fault", ((CHILD, PARENT), (AUDIT,)), faults=1),
    Crowd("a key and a limit; 3 tasks", ((A, B_2), (B_2, A), (B_2,))),
    Crowd("two limits; 3 tasks", ((A_2, B_2), (B_2, A_2), (A_2, B_2))),
    Crowd("two limits of one, declared in two orders", ((A_1, B_1), (B_1, A_1))),
    Crowd("a limit that rises and falls; 3 tasks", ((A_1, B_1), (A_2, B_1), (A_1, B_1))),
    Crowd("a key alone for one, and a limit for another", ((A_2, B), (A, B_2))),
)
SLOW = (
    Crowd("a limit that rises and falls, a crash", ((A_1, B_1), (A_2, B_1)), 1, CRASHES),
    Crowd("two keys; 1 fault", ((A, B), (B, A)), faults=1),
    Crowd("two keys, rescheduled; 1 fault", ((A, B), (B, A)), faults=1, wait=WaitMode.PLACE),
    Crowd("a parent that sorts last; 1 fault", ((A, LAST), (Wants("z"),)), faults=1),
    Crowd("two children; 1 fault", ((CHILD, PARENT), (CHILD, PARENT)), faults=1),
    Crowd("a child, and all; 1 fault", ((CHILD, PARENT), (CHILD, AUDIT)), faults=1),
    Crowd("a key and a limit, a crash", ((A, B_2), (B_2, A)), faults=1, kinds=CRASHES),
    Crowd("two limits, a crash", ((A_2, B_2), (B_2, A_2)), faults=1, kinds=CRASHES),
)


@pytest.mark.parametrize("crowd", QUICK, ids=lambda crowd: crowd.name)
def test_nobody_waits_for_himself_in_a_small_crowd(crowd: Crowd) -> None:
    explore_several(crowd)


@pytest.mark.slow
@pytest.mark.timeout(900)  # a minute of a quiet core
@pytest.mark.parametrize("crowd", SLOW, ids=lambda crowd: crowd.name)
def test_nobody_waits_for_himself_in_a_larger_crowd(crowd: Crowd) -> None:
    explore_several(crowd)


nobody_looks = mock.patch.object(OtherKeys, "_waits_for_itself", return_value=False)
as_written = mock.patch.object(state, "ask_order", return_value=(0, ""))


@pytest.mark.parametrize(
    ("spoilt", "rule"),
    [
        ([as_written, nobody_looks], "L"),
        ([mock.patch.object(other_keys, "given_back", return_value=[])], "R who has ended"),
    ],
    ids=["keys are asked for as they are written", "who waits still holds the keys before"],
)
def test_a_defect_of_the_way_to_several_keys_is_found(spoilt: list[Any], rule: str) -> None:
    with ExitStack() as defects:
        for defect in spoilt:
            defects.enter_context(defect)
        with pytest.raises(Violation) as found:
            explore_several(Crowd("two", ((A, B), (B, A))))

    assert found.value.rule.startswith(rule)


def test_a_key_whose_request_was_not_answered_is_taken_back() -> None:
    deaf = mock.patch.object(LockManager, "_take_back", return_value=False)

    with deaf, pytest.raises(Violation, match="R who has ended has none of its keys"):
        explore_several(Crowd("one key", ((A,),), faults=1))


by_value = mock.patch.object(Claim, "order", property(lambda claim: (claim.limit, claim.key)))


@pytest.mark.parametrize(
    "tasks",
    [((A_1, B_1), (B_1, A_1)), ((A_2, B), (A, B_2))],
    ids=["declared in two orders", "a key alone for one, and a limit for another"],
)
def test_without_a_look_at_who_waits_two_wait_for_each_other_for_an_hour(
    tasks: tuple[tuple[Wants, ...], ...],
) -> None:
    crowd = Crowd("two", tasks)

    with nobody_looks:
        with pytest.raises(Violation) as found:
            explore_several(crowd)
        explore_several(replace(crowd, for_hours=True))

    assert found.value.rule.startswith("L")


def test_limits_that_are_asked_for_by_their_value_are_a_deadlock_when_one_rises() -> None:
    crowd = Crowd("[Limit('a', f), Limit('b', 1)] with f from 1 to 2", ((A_1, B_1), (A_2, B_1)))

    with nobody_looks:
        explore_several(crowd)  # as they are declared
        as_it_was = planted(edits, "ask_with_limit", _smallest), by_value
        unheeded = mock.patch.multiple(key, check_limit=mock.DEFAULT, check_after=mock.DEFAULT)
        with as_it_was[0], as_it_was[1], unheeded, pytest.raises(Violation) as found:
            explore_several(crowd)

    assert found.value.rule.startswith("L")


def _smallest(whole: Any, state: KeyState, mode: Mode, limit: int) -> Any:
    """The rule that was: of several limits the smallest counts."""
    return whole(state, mode, min(limit, edits.limit_of_slots(state) or limit))
