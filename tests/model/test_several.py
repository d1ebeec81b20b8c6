"""Nobody waits for himself, and nothing stays held, whoever takes which keys in which order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from celery_dlock.core import state
from celery_dlock.core.state import Mode, WaitMode
from celery_dlock.locks import manager
from celery_dlock.locks.manager import LockManager
from tests.model.key import Violation
from tests.model.several import CRASH, Crowd, Wants, explore_several

A, B = Wants("a"), Wants("b")
A_2, B_2 = Wants("a", limit=2), Wants("b", limit=2)
CHILD, PARENT = Wants("orders/1"), Wants("orders", Mode.SHARED, parent=True)
AUDIT, LAST = Wants("orders"), Wants("z", Mode.SHARED, parent=True)
CRASHES = frozenset({CRASH})

QUICK = (
    Crowd("two keys, written in two orders; 3 tasks", ((A, B), (B, A), (A, B))),
    Crowd("a child and who takes its parent; 1 fault", ((CHILD, PARENT), (AUDIT,)), faults=1),
    Crowd("a key and a limit; 3 tasks", ((A, B_2), (B_2, A), (B_2,))),
    Crowd("two limits; 3 tasks", ((A_2, B_2), (B_2, A_2), (A_2, B_2))),
)
SLOW = (
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
@pytest.mark.parametrize("crowd", SLOW, ids=lambda crowd: crowd.name)
def test_nobody_waits_for_himself_in_a_larger_crowd(crowd: Crowd) -> None:
    explore_several(crowd)


@pytest.mark.parametrize(
    ("spoilt", "rule"),
    [
        (mock.patch.object(state, "ask_order", return_value=(0, "")), "L"),
        (mock.patch.object(manager, "given_back", return_value=[]), "R who has ended"),
    ],
    ids=["keys are asked for as they are written", "who waits still holds the keys before"],
)
def test_a_defect_of_the_way_to_several_keys_is_found(spoilt: Any, rule: str) -> None:
    with spoilt, pytest.raises(Violation) as found:
        explore_several(Crowd("two", ((A, B), (B, A))))

    assert found.value.rule.startswith(rule)


def test_a_key_whose_request_was_not_answered_is_taken_back() -> None:
    deaf = mock.patch.object(LockManager, "_take_back", return_value=False)

    with deaf, pytest.raises(Violation, match="R who has ended has none of its keys"):
        explore_several(Crowd("one key", ((A,),), faults=1))


def test_two_that_take_a_limit_in_two_widths_wait_for_each_other_for_an_hour() -> None:
    crowd = Crowd("two widths", ((A_2, B), (A, B_2)))

    with pytest.raises(Violation) as found:
        explore_several(crowd)
    explore_several(replace(crowd, for_hours=True))

    assert found.value.rule.startswith("L")
