"""The checker itself: a clean record passes, and each broken promise is seen, by its own check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

import pytest

from tests.chaos.checker import Check, Evidence, violations
from tests.chaos.faults import Struck
from tests.chaos.plan import Kind
from tests.chaos.resource import Effect, Seen
from tests.chaos.sender import Sent
from tests.chaos.stage import End
from tests.chaos.ways import FEATURES, KEYS, Key

QUEUED = KEYS[0]


def sent(task: str, at: float, arrived: float | None = None) -> Sent:
    return Sent(task, QUEUED, (), at, arrived)


def seen(task: str, token: int, *instants: float, run: str = "", slot: str = "first") -> list[Seen]:
    """A run that could trust its lease at all of *instants*, and ended at the last."""
    run, key, first, last = run or task, slot.partition("#")[0], instants[0], instants[-1]
    return [Seen(run, task, 0, key, slot, token, at, True, at == last, first) for at in instants]


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


def reordered(tasks: str) -> list[Effect]:
    return [effect(task, number) for number, task in enumerate(tasks, start=2)]


SKIPPED, REVOKED = End("SUCCESS", True, ""), End("REVOKED", False, "")
OVERTAKEN = [*seen("b", 2, 1.0, 1.2), *seen("a", 3, 1.3, 1.5), *seen("c", 4, 1.6, 1.7)]
LATE = [replace(each, at=each.at + 3.0) for each in OVERTAKEN]
AGAIN = [*CLEAN.seen, *seen("a", 4, 2.0, 2.1, run="a again")]
LOST = replace(CLEAN.seen[1], at=1.4, trusted=False)
TWO_SLOTS = [*seen("a", 1, 1.0, 1.5, slot="slots"), *seen("b", 2, 1.1, 1.6, slot="slots#1")]
READERS = [*seen("a", 0, 1.0, 1.4, slot="book"), *seen("b", 0, 1.1, 1.3, slot="book")]
BELOW = [*seen("a", 1, 1.0, 1.4, slot="tree/a"), *seen("b", 1, 1.1, 1.3, slot="tree/b")]
FIRST, OTHER, LAST = CLEAN.sent
BY_CALLS = Key("first", "published", order=FEATURES["ordered"][0].order)
CALLED = [
    Sent(task, BY_CALLS, (), at, published=at + 0.05)
    for task, at in zip("abc", (0.5, 0.6, 0.7), strict=True)
]
PASSED = {"seen": OVERTAKEN, "effects": reordered("bac")}

#: What is changed of a clean record, and the checks that say so.
RECORDS: dict[str, tuple[dict[str, object], list[Check]]] = {
    "a clean one": ({}, []),
    "a task without an effect": ({"effects": CLEAN.effects[:2]}, [Check.MISSING]),
    "an effect too many": ({"effects": [*CLEAN.effects, effect("c", 4)]}, [Check.TWICE]),
    "an effect of nobody": ({"effects": [*CLEAN.effects, effect("nobody's", 4)]}, [Check.TWICE]),
    "two who trust the same lock": (
        {"seen": [*seen("a", 1, 1.0, 1.4), *CLEAN.seen[2:]]},
        [Check.OVERLAP, Check.OVERLAP],
    ),
    "one that lost its lease": ({"seen": [CLEAN.seen[0], LOST, *CLEAN.seen[2:]]}, []),
    "two of two slots": ({"seen": TWO_SLOTS}, []),
    "three of two slots": (
        {"seen": [*TWO_SLOTS, *seen("c", 3, 1.2, 1.7, slot="slots#2")]},
        [Check.OVERLAP],
    ),
    "two in one slot": (
        {"seen": [*seen("a", 1, 1.0, 1.5, slot="slots#1"), *TWO_SLOTS[2:]]},
        [Check.OVERLAP],
    ),
    "a token that does not grow": (
        {"seen": [*CLEAN.seen[:4], *seen("c", 2, 1.6, 1.7)]},
        [Check.TOKENS],
    ),
    "a write behind a newer token": (
        {"effects": [CLEAN.effects[1], CLEAN.effects[0], CLEAN.effects[2]]},
        [Check.TOKENS],
    ),
    "a holder without a token": (
        {"seen": [*seen("a", 0, 1.0, 1.2), *CLEAN.seen[2:]]},
        [Check.TOKENS],
    ),
    "who came first is passed over": (PASSED, [Check.ORDER]),
    "who came at the same time is": ({**PASSED, "sent": [sent("a", 0.0, 0.25), OTHER, LAST]}, []),
    "on a key that fell silent": ({**PASSED, "seen": LATE}, []),
    "the order of the calls": ({"sent": CALLED}, []),
    "another order than that of the calls": ({**PASSED, "sent": CALLED}, [Check.ORDER]),
    "what is finished runs again": ({"seen": AGAIN}, [Check.REPEATED]),
    "a copy of an earlier attempt runs": (
        {"seen": [*(replace(each, attempt=1) for each in AGAIN[:2]), *AGAIN[2:]]},
        [],
    ),
    "a task without an effect that was revoked": (
        {
            "sent": [FIRST, OTHER, replace(LAST, revoked=True)],
            "effects": CLEAN.effects[:2],
            "ends": {"c": REVOKED},
        },
        [],
    ),
    "what is left": ({"locked": ["first"], "left": ["one"]}, [Check.LOCKED, Check.LEFT]),
    "two readers": ({"seen": READERS}, []),
    "readers and a writer": (
        {"seen": [*READERS, *seen("c", 1, 1.35, 1.5, slot="book")]},
        [Check.OVERLAP],
    ),
    "two below a parent": ({"seen": BELOW}, []),
    "two below a parent, and who has that": (
        {"seen": [*BELOW, *seen("c", 2, 1.35, 1.5, slot="tree")]},
        [Check.OVERLAP],
    ),
    "what follows comes after": ({"sent": [FIRST, OTHER, replace(LAST, follows=OTHER)]}, []),
    "what follows comes before": (
        {"sent": [replace(FIRST, follows=LAST), OTHER, LAST]},
        [Check.EARLY],
    ),
}


@pytest.mark.parametrize("record", RECORDS)
def test_each_broken_promise_is_seen_by_its_own_check(record: str) -> None:
    changes, found = RECORDS[record]
    assert checks(**changes) == found


@pytest.mark.parametrize(
    ("kind", "end", "excuses"),
    [
        (Kind.STORE_AWAY, 0.9, True),
        (Kind.KILL_CHILD, 0.9, True),
        (Kind.PAUSE_WORKER, 0.9, False),  # its key would have fallen silent
        (Kind.PAUSE_STORE, 0.9, False),  # nobody loses a turn by that
        (Kind.STORE_AWAY, -2.5, False),  # too long ago
    ],
)
def test_some_faults_take_turns(kind: Kind, end: float, excuses: bool) -> None:
    struck = [Struck(kind, end - 0.1, end)]
    found = checks(seen=OVERTAKEN, effects=reordered("bac"), struck=struck)
    assert found == ([] if excuses else [Check.ORDER])


@pytest.mark.parametrize(
    ("others", "excuses"), [([], False), ([Kind.COPY], False), ([Kind.KILL_WORKER], True)]
)
def test_a_key_that_fell_silent_with_its_store_had_given_nobody_his_turn(
    others: list[Kind], excuses: bool
) -> None:
    struck = [Struck(kind, 1.0, 3.5) for kind in (Kind.PAUSE_STORE, *others)]
    found = checks(seen=LATE, effects=reordered("bac"), struck=struck)
    assert found == ([] if excuses else [Check.ORDER])


@pytest.mark.parametrize(("kind", "excuses"), [(Kind.KILL_WORKER, True), (Kind.COPY, False)])
def test_a_fault_as_it_left_lets_it_run_again(kind: Kind, excuses: bool) -> None:
    found = checks(seen=AGAIN, struck=[Struck(kind, 1.3, 1.3)])
    assert found == ([] if excuses else [Check.REPEATED])


def test_a_key_that_cools_down_is_seen_to_do_so() -> None:
    cooling = FEATURES["cooldown"][0]
    calls = [Sent(task, cooling, (), 0.0) for task in "abc"]
    for pause, found in ((0.31, []), (0.29, [Check.COOLED, Check.COOLED])):
        at = [number * pause for number in range(3)]
        each = zip("abc", at, strict=True)
        runs = [s for n, (t, a) in enumerate(each) for s in seen(t, n + 1, a, a, slot="cooling")]
        assert checks(sent=calls, seen=runs) == found


def fate(
    feature: str, end: End, at: float, *, duplicate: bool = False, struck: Sequence[Kind] = ()
) -> list[StrEnum]:
    """What is said of a task that ended so; another one of its key ran from 1.0 to 1.2."""
    key = FEATURES[feature][0]
    calls = [Sent("a", key, (), 0.0, arrived=0.1, call=1, published=0.0)]
    name = "a" if duplicate else "b"
    calls += [Sent(name, key, (), at, call=2, published=at, duplicate=duplicate)]
    effects = [Effect("a", key.name, key.name, 1, 1)]
    runs = seen("a", 1, 1.0, 1.2, slot=key.name)
    faults = [Struck(kind, 1.3, 1.4) for kind in struck]
    return checks(sent=calls, effects=effects, seen=runs, ends={"b": end}, struck=faults)


@pytest.mark.parametrize(
    ("feature", "end", "at", "duplicate", "right"),
    [
        ("queue", SKIPPED, 1.1, False, False),
        ("skip", SKIPPED, 1.1, False, True),
        ("skip", SKIPPED, 3.0, False, False),  # nobody had the key any more
        ("skip", End("FAILURE", False, ""), 1.1, False, False),
        ("replace", SKIPPED, 0.05, False, True),
        ("replace", SKIPPED, 0.5, False, False),  # by one that had come before
        ("replace", SKIPPED, 1.1, False, False),  # nobody ran after it
        ("unique until done", SKIPPED, 1.1, True, True),
        ("unique until done", SKIPPED, 3.0, True, False),
        ("unique until start", SKIPPED, 0.5, True, True),
        ("unique until start", SKIPPED, 1.1, True, False),
        ("debounce", SKIPPED, 0.5, True, False),  # it ran with the older arguments
        ("revoke", REVOKED, 0.5, False, False),  # nobody has revoked it
    ],
)
def test_who_does_not_run_is_done_for(
    feature: str, end: End, at: float, duplicate: bool, right: bool
) -> None:
    assert fate(feature, end, at, duplicate=duplicate) == ([] if right else [Check.MISSING])


@pytest.mark.parametrize(
    ("struck", "at", "right"),
    [
        ([Kind.STORE_AWAY, Kind.KILL_WORKER], 50.0, True),
        ([Kind.STORE_AWAY, Kind.KILL_WORKER], 70.0, False),
        ([Kind.STORE_AWAY], 50.0, False),  # it is told later
        ([Kind.KILL_WORKER], 50.0, False),  # its lease ends, and its message comes again
    ],
)
def test_who_dies_before_the_store_has_heard_is_believed_for_a_minute(
    struck: list[Kind], at: float, right: bool
) -> None:
    found = fate("unique until done", SKIPPED, at, duplicate=True, struck=struck)
    assert found == ([] if right else [Check.MISSING])


@pytest.mark.parametrize(("at", "right"), [(15.4, True), (15.6, False)])
def test_calls_are_answered_with_who_has_ended_for_a_while(at: float, right: bool) -> None:
    key = FEATURES["unique until done"][0]
    calls = [Sent("a", key, (), 0.0, arrived=0.1, call=1, published=0.0)]
    calls += [Sent("a", key, (), at, call=2, published=at, duplicate=True)]
    paused = [(1.3, 3.0), (3.4, 5.5), (20.0, 21.0)]  # it is asked again after the second
    found = checks(
        sent=calls,
        effects=[Effect("a", key.name, key.name, 1, 1)],
        seen=seen("a", 1, 1.0, 1.2, slot=key.name),
        struck=[Struck(Kind.PAUSE_STORE, begin, end) for begin, end in paused],
    )
    assert found == ([] if right else [Check.MISSING])


def test_of_two_calls_before_it_starts_one_is_published() -> None:
    assert fate("unique until start", SKIPPED, 0.5) == [Check.MISSING, Check.DOUBLED]


@pytest.mark.parametrize(("until", "right"), [(-1.0, True), (-6.0, False)])
def test_a_call_may_go_without_its_claim_in_an_election(until: float, right: bool) -> None:
    (key,) = FEATURES["unique until start"]
    calls = [Sent(t, key, (), at, 0.1, published=at) for t, at in [("a", 0.0), ("b", 0.1)]]
    found = checks(
        sent=calls,
        effects=[replace(effect(task, n), key="again") for n, task in enumerate("ab", start=1)],
        seen=[*seen("a", 1, 1.0, 1.2, slot="again"), *seen("b", 2, 1.3, 1.5, slot="again")],
        struck=[Struck(Kind.PAUSE_MEMBER, until - 0.1, until)],
    )
    assert found == ([] if right else [Check.DOUBLED])


@pytest.mark.parametrize(("took", "found"), [(0.1, [Check.DOUBLED]), (2.0, [])])
def test_so_may_one_that_the_store_does_not_answer(took: float, found: list[Check]) -> None:
    (key,) = FEATURES["unique until start"]
    calls = [Sent(t, key, (), 0.0, 0.1, published=at) for t, at in [("a", 0.0), ("b", took)]]
    effects = [replace(effect(task, n), key="again") for n, task in enumerate("ab", start=1)]
    runs = [*seen("a", 1, 3.0, 3.2, slot="again"), *seen("b", 2, 3.3, 3.5, slot="again")]
    assert checks(sent=calls, effects=effects, seen=runs) == found


@pytest.mark.parametrize(("over", "found"), [(1.2, []), (-1.0, [Check.DOUBLED])])
def test_so_may_one_after_a_task_that_was_struck(over: float, found: list[Check]) -> None:
    (key,) = FEATURES["unique until start"]
    at = {"a": -3.0, "b": 0.0, "c": 0.1}
    effects = [replace(effect(task, n), key="again") for n, task in enumerate("abc", start=1)]
    runs = [*seen("a", 1, over - 0.1, over, slot="again")]
    runs += [*seen("b", 2, 3.0, 3.2, slot="again"), *seen("c", 3, 3.3, 3.5, slot="again")]
    assert (
        checks(
            sent=[Sent(task, key, (), when, published=when) for task, when in at.items()],
            effects=effects,
            seen=runs,
            struck=[Struck(Kind.CUT_STORE, -3.1, -2.9)],
        )
        == found
    )


def test_who_is_answered_with_a_duplicate_is_done_for_by_the_task_of_which_that_is_one() -> None:
    (key,) = FEATURES["unique until done"]
    for at, found in ((1.1, []), (3.0, [Check.MISSING])):
        calls = [Sent(task, key, (), 0.0) for task in "ab"]
        calls.append(Sent("b", key, (), at, duplicate=True))
        runs, ends = seen("a", 1, 1.0, 1.2, slot="once"), {"b": SKIPPED}
        only = [replace(effect("a", 1), key="once")]
        assert checks(sent=calls, effects=only, seen=runs, ends=ends) == found


@pytest.mark.parametrize("struck", [[], [Kind.RESTART_BROKER]])
def test_what_was_to_follow_fails_visibly_where_the_broker_was_away(struck: list[Kind]) -> None:
    first, other, last = CLEAN.sent
    failed = End("FAILURE", False, "")
    found = checks(
        sent=[first, other, replace(last, follows=other)],
        effects=CLEAN.effects[:2],
        struck=[Struck(kind, 1.5, 1.6) for kind in struck],
        ends={"b": failed, "c": failed},
    )
    assert found == ([] if struck else [Check.MISSING])


@pytest.mark.parametrize(("retries", "found"), [(1, []), (0, [Check.MISSING])])
def test_a_revoked_tasks_end_may_be_under_its_retry(retries: int, found: list[Check]) -> None:
    gone = replace(CLEAN.sent[2], revoked=True, args=("first", (), retries))
    assert checks(sent=[*CLEAN.sent[:2], gone], effects=CLEAN.effects[:2]) == found


@pytest.mark.parametrize(("struck", "found"), [([], [Check.RESERVED]), ([Kind.KILL_CHILD], [])])
def test_who_comes_before_a_retry_is_seen(struck: list[Kind], found: list[Check]) -> None:
    (key,) = FEATURES["reserved retries"]
    runs = [*seen("a", 1, 1.0, 1.2), *seen("b", 2, 1.3, 1.5), *seen("a", 3, 1.6, 1.7, run="again")]
    assert (
        checks(
            sent=[Sent("a", key, (), 0.0, 0.1), Sent("b", key, (), 0.2, 0.3)],
            effects=[
                replace(effect(task, token), key=key.name) for task, token in [("b", 2), ("a", 3)]
            ],
            seen=[
                replace(each, key=key.name, attempt=int(each.run == "again"), ending=each.token > 1)
                for each in runs
            ],
            struck=[Struck(kind, 1.25, 1.26) for kind in struck],
        )
        == found
    )


@pytest.mark.parametrize(("struck", "found"), [([], [Check.RESERVED]), ([Kind.KILL_CHILD], [])])
def test_who_comes_before_the_next_of_a_chain_is_seen(
    struck: list[Kind], found: list[Check]
) -> None:
    (key,) = FEATURES["chain"]
    first, other = Sent("a", key, (), 0.0, 0.1), Sent("b", key, (), 0.2, 0.3)
    runs = [*seen("a", 1, 1.0, 1.2), *seen("b", 2, 1.3, 1.5), *seen("c", 3, 1.6, 1.7)]
    assert (
        checks(
            sent=[first, other, Sent("c", key, (), 0.0, follows=first)],
            effects=[
                replace(effect(task, token), key=key.name)
                for task, token in [("a", 1), ("b", 2), ("c", 3)]
            ],
            seen=[replace(each, key=key.name, ending=True) for each in runs],
            struck=[Struck(kind, 1.25, 1.26) for kind in struck],
        )
        == found
    )


@pytest.mark.parametrize(("unheard", "found"), [((), [Check.REPEATED]), ((1.25,), [])])
def test_a_release_that_the_store_did_not_answer_may_be_one_of_which_it_never_heard(
    unheard: Sequence[float], found: list[Check]
) -> None:
    again = [*CLEAN.seen, *seen("a", 4, 5.0, 5.1, run="again")]
    releases = [Struck(Kind.LOSE_REPLIES, at, at) for at in unheard]
    assert checks(seen=again, unheard=releases) == found
