"""The rules hold in every world that can be reached, and a broken rule is noticed."""

from __future__ import annotations

import pytest

from celery_dlock.core.state import WaitMode
from tests.model.checks import Violation
from tests.model.config import CRASH, FAULTS, Config, Task
from tests.model.configs import QUICK, SLOW
from tests.model.defects import TWO, Defect, Disorder
from tests.model.defects_of_endings import ENDINGS
from tests.model.defects_of_keeping import KEEPING
from tests.model.defects_of_rules import RULES
from tests.model.defects_of_upkeep import UPKEEP
from tests.model.defects_of_world import AROUND
from tests.model.explore import explore


@pytest.mark.parametrize("config", QUICK, ids=lambda config: config.name)
def test_no_rule_breaks_in_a_small_world(config: Config) -> None:
    explore(config)


@pytest.mark.slow
@pytest.mark.parametrize("config", SLOW, ids=lambda config: config.name)
def test_no_rule_breaks_in_a_larger_world(config: Config) -> None:
    explore(config)


@pytest.mark.parametrize(
    "defect", [*RULES, *ENDINGS, *KEEPING, *UPKEEP, *AROUND], ids=lambda defect: defect.name
)
def test_a_defect_is_found(defect: Defect | Disorder) -> None:
    with defect.planted(), pytest.raises(Violation) as found:
        explore(defect.config)

    assert found.value.rule.startswith(defect.rule)
    assert found.value.trace, "the shortest way to it is told"


def test_no_defect_stays_behind() -> None:
    for defect in (*RULES, *ENDINGS, *KEEPING, *UPKEEP, *AROUND):
        with defect.planted():
            pass

    explore(TWO)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(FAULTS - {CRASH}))
def test_every_kind_of_fault_leads_to_worlds_of_its_own(kind: str) -> None:
    tasks = (Task(WaitMode.QUEUE, ordered=True), Task(WaitMode.PLACE))
    crashes = explore(Config("crashes", tasks, faults=2, kinds=frozenset({CRASH})))

    both = explore(Config(kind, tasks, faults=2, kinds=frozenset({CRASH, kind})))

    assert both.worlds > crashes.worlds


def test_without_faults_a_contended_task_costs_one_publish_more() -> None:
    assert explore(Config("calm", (Task(), Task(), Task()))).most_calls == 1
