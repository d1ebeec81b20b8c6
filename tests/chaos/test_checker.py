"""The checker itself: a clean record passes, and each broken promise is seen, by its own check."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

import pytest

from tests.chaos.checker import Check, Evidence, violations
from tests.chaos.faults import Struck
from tests.chaos.plan import KEYS, Kind
from tests.chaos.resource import Effect, Seen
from tests.chaos.sender import Sent

QUEUED, SLOTS = KEYS[0], next(key for key in KEYS if key.limit == 2)


def sent(task: str, at: float, arrived: float | None = None) -> Sent:
    return Sent(task, QUEUED, (), at, arrived)


def seen(task: str, token: int, *instants: float, run: str = "", slot: str = "first") -> list[Seen]:
    """A run that could trust its lease at all of *instants*, and ended at the last."""
    return [
        Seen(
            run or task, task, 0, slot.partition("#")[0], slot, token, at, True, at == instants[-1]
        )
        for at in instants
    ]


def effect(task: str, token: int) -> Effect:
    return Effect(task, "first", "first", token)


CLEAN = Evidence(
    sent=[sent("a", 0.0, 0.1), sent("b", 0.2, 0.3), sent("c", 0.4)],
    effects=[effect("a", 1), effect("b", 2), effect("c", 3)],
    seen=[*seen("a", 1, 1.0, 1.2), *seen("b", 2, 1.3, 1.5), *seen("c", 3, 1.6, 1.7)],
    struck=[],
    ttl=1.5,
)


def checks(**changes: object) -> list[StrEnum]:
    return [found.check for found in violations(replace(CLEAN, **changes))]  # type: ignore[arg-type]


def test_a_clean_record_passes() -> None:
    assert checks() == []


def test_a_task_without_an_effect_is_missing() -> None:
    assert checks(effects=CLEAN.effects[:2]) == [Check.MISSING]


@pytest.mark.parametrize("task", ["c", "nobody's"])
def test_an_effect_too_many_is_seen(task: str) -> None:
    assert checks(effects=[*CLEAN.effects, effect(task, 4)]) == [Check.TWICE]


def test_two_who_trust_the_same_lock_overlap() -> None:
    longer = seen("a", 1, 1.0, 1.4)
    assert checks(seen=[*longer, *CLEAN.seen[2:]]) == [Check.OVERLAP, Check.OVERLAP]


def test_who_lost_its_lease_overlaps_nobody() -> None:
    late = replace(CLEAN.seen[1], at=1.4, trusted=False)
    assert checks(seen=[CLEAN.seen[0], late, *CLEAN.seen[2:]]) == []


def test_a_key_has_as_many_holders_as_its_limit() -> None:
    two = [*seen("a", 1, 1.0, 1.5, slot="slots"), *seen("b", 2, 1.1, 1.6, slot="slots#1")]
    three = [*two, *seen("c", 3, 1.2, 1.7, slot="slots#2")]
    assert checks(seen=two) == []
    assert checks(seen=three) == [Check.OVERLAP]


def test_two_in_one_slot_overlap() -> None:
    two = [*seen("a", 1, 1.0, 1.5, slot="slots#1"), *seen("b", 2, 1.1, 1.6, slot="slots#1")]
    assert checks(seen=two) == [Check.OVERLAP]


def test_a_token_that_does_not_grow_is_seen() -> None:
    again = [*CLEAN.seen[:4], *seen("c", 2, 1.6, 1.7)]
    assert checks(seen=again) == [Check.TOKENS]


def test_a_write_behind_a_newer_token_is_seen() -> None:
    order = [CLEAN.effects[1], CLEAN.effects[0], CLEAN.effects[2]]
    assert checks(effects=order) == [Check.TOKENS]


OVERTAKEN = [*seen("b", 2, 1.0, 1.2), *seen("a", 3, 1.3, 1.5), *seen("c", 4, 1.6, 1.7)]
LATE = [replace(each, at=each.at + 3.0) for each in OVERTAKEN]


def test_who_came_first_is_not_passed_over() -> None:
    assert checks(seen=OVERTAKEN, effects=reordered("bac")) == [Check.ORDER]


def test_who_came_at_the_same_time_may_be_passed_over() -> None:
    at_once = [sent("a", 0.0, 0.25), *CLEAN.sent[1:]]
    assert checks(sent=at_once, seen=OVERTAKEN, effects=reordered("bac")) == []


@pytest.mark.parametrize(
    ("kind", "end", "excuses"),
    [
        (Kind.STORE_AWAY, 0.9, True),
        (Kind.KILL_CHILD, 0.9, True),
        (Kind.PAUSE_WORKER, 0.9, False),  # its key would have fallen silent
        (Kind.STORE_AWAY, -2.5, False),  # too long ago
    ],
)
def test_some_faults_take_turns(kind: Kind, end: float, excuses: bool) -> None:
    struck = [Struck(kind, end - 0.1, end)]
    found = checks(seen=OVERTAKEN, effects=reordered("bac"), struck=struck)
    assert found == ([] if excuses else [Check.ORDER])


def test_a_key_that_fell_silent_had_given_somebody_his_turn() -> None:
    assert checks(seen=LATE, effects=reordered("bac")) == []


AGAIN = [*CLEAN.seen, *seen("a", 4, 2.0, 2.1, run="a again")]


def test_what_is_finished_does_not_run_again() -> None:
    assert checks(seen=AGAIN) == [Check.REPEATED]


def test_a_copy_of_an_earlier_attempt_is_another_one() -> None:
    last = [replace(each, attempt=1) for each in AGAIN[:2]]
    assert checks(seen=[*last, *AGAIN[2:]]) == []


@pytest.mark.parametrize(("kind", "excuses"), [(Kind.KILL_WORKER, True), (Kind.COPY, False)])
def test_a_fault_as_it_left_lets_it_run_again(kind: Kind, excuses: bool) -> None:
    found = checks(seen=AGAIN, struck=[Struck(kind, 1.3, 1.3)])
    assert found == ([] if excuses else [Check.REPEATED])


def test_what_is_left_is_said() -> None:
    assert checks(locked=["first"], left=["a message"]) == [Check.LOCKED, Check.LEFT]


def reordered(tasks: str) -> list[Effect]:
    return [effect(task, number) for number, task in enumerate(tasks, start=2)]
