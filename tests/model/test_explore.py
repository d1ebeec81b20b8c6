"""The rules hold in every world that can be reached, and a broken rule is noticed."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from unittest import mock

import pytest

from celery_dlock.core.state import Mode, WaitMode
from tests.model import explore as explorer
from tests.model.alike import Alike
from tests.model.checks import Violation
from tests.model.config import CRASH, FAULTS, Config, Task
from tests.model.configs import QUICK, SLOW
from tests.model.defects import TWO, Defect, Disorder
from tests.model.defects_of_endings import ENDINGS
from tests.model.defects_of_failover import FORGETS
from tests.model.defects_of_keeping import KEEPING
from tests.model.defects_of_rules import RULES
from tests.model.defects_of_upkeep import UPKEEP
from tests.model.defects_of_world import AROUND
from tests.model.explore import explore
from tests.model.world import World

DEFECTS = (*RULES, *ENDINGS, *KEEPING, *UPKEEP, *AROUND, *FORGETS)

#: Small worlds of every sort, which are explored with and without what is done at once.
WHOLE = (
    Config("ways", (Task(), Task(WaitMode.PLACE), Task(WaitMode.NOT))),
    Config("a fault", (Task(gives_up=True), Task(keep=True)), faults=1),
    Config("early", (Task(keep=True, ordered=True), Task(ordered=True)), faults=1, early_ack=True),
    Config("copies", (Task(WaitMode.PLACE),), faults=2, shared_ack=True),
    Config("a retry", (Task(retries_as=2, reserves=True), Task(looks=True), Task())),
    Config("dead", (Task(unknown=True, revocable=True), Task(foreign=True)), most_calls=2),
    Config("handed back", (Task(), Task(foreign=True)), faults=1),
)
#: In these some tasks are alike.
ALIKE = (
    Config("three", (Task(),) * 3),
    Config("a fault", (Task(),) * 2, faults=1),
    Config("a retry", (Task(retries_as=1), Task(), Task(), Task())),
    Config("readers", (Task(WaitMode.PLACE, Mode.SHARED),) * 2, faults=1),
    Config("the newest", (Task(max_waiting=1, replaces=True, newest=True),) * 2),
    Config("dead", (Task(unknown=True, revocable=True),) * 2, most_calls=2),
    Config("handed back", (Task(foreign=True, ordered=True),) * 2),
)


@pytest.mark.parametrize("config", QUICK, ids=lambda config: config.name)
def test_no_rule_breaks_in_a_small_world(config: Config) -> None:
    explore(config)


@pytest.mark.slow
@pytest.mark.parametrize("config", SLOW, ids=lambda config: config.name)
def test_no_rule_breaks_in_a_larger_world(config: Config) -> None:
    explore(config)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_defect_is_found(defect: Defect | Disorder) -> None:
    with defect.planted(), pytest.raises(Violation) as found:
        explore(defect.config)

    assert found.value.rule.startswith(defect.rule)
    assert found.value.trace, "the shortest way to it is told"


@pytest.mark.parametrize("defect", FORGETS, ids=lambda defect: defect.name)
def test_some_defects_are_only_found_where_the_store_fails_over(defect: Defect) -> None:
    with defect.planted():
        explore(replace(defect.config, kinds=FAULTS))


def test_no_defect_stays_behind() -> None:
    for defect in DEFECTS:
        with defect.planted():
            pass

    explore(TWO)


AT_LEISURE = mock.patch.object(explorer, "at_once", lambda _, world: world)


@pytest.mark.parametrize("config", WHOLE, ids=lambda config: config.name)
def test_what_is_done_at_once_keeps_no_operation_from_any_state(config: Config) -> None:
    with mock.patch.object(Alike, "merged", lambda _, world: (world, 0)):
        less = explore(config)
        with AT_LEISURE:
            whole = explore(config)

    assert less.worlds < whole.worlds
    assert (less.keys, less.operations) == (whole.keys, whole.operations)
    assert less.most_calls == whole.most_calls


@pytest.mark.parametrize("config", ALIKE, ids=lambda config: config.name)
@AT_LEISURE
def test_worlds_that_are_merged_are_all_there_are_but_for_who_is_which(config: Config) -> None:
    merge, met = Alike.merged, set[World]()

    def apart(alike: Alike, world: World) -> tuple[World, int]:
        met.add(merge(alike, world)[0])
        return world, 0

    with mock.patch.object(Alike, "merged", apart):
        whole = explore(config)
    merged = explore(config)

    assert merged.worlds < whole.worlds
    assert merged.worlds == len(met) + 1, "nothing leads back to the first one"
    assert merged.most_calls == whole.most_calls


@cache
def worlds(*kinds: str) -> int:
    tasks = (Task(WaitMode.QUEUE, ordered=True), Task(WaitMode.PLACE))
    return explore(Config(" ".join(kinds), tasks, faults=2, kinds=frozenset(kinds))).worlds


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(FAULTS - {CRASH}))
def test_every_kind_of_fault_leads_to_worlds_of_its_own(kind: str) -> None:
    assert worlds(CRASH, kind) > worlds(CRASH)


def test_without_faults_a_contended_task_costs_one_publish_more() -> None:
    assert explore(Config("calm", (Task(), Task(), Task()))).most_calls == 1
