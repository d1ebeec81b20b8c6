"""The rules hold in every world that can be reached, and a broken rule is noticed."""

from __future__ import annotations

from functools import cache

import pytest

from celery_dlock.core.state import WaitMode
from tests.model.checks import Violation
from tests.model.config import CRASH, FAULTS, Config, Task
from tests.model.configs import QUICK, SLOW
from tests.model.defects import DEFECTS, Defect
from tests.model.explore import explore
from tests.services.planted import one_in_every_run


@pytest.mark.parametrize("config", QUICK, ids=lambda config: config.name)
def test_no_rule_breaks_in_a_small_world(config: Config) -> None:
    explore(config)


@pytest.mark.slow
@pytest.mark.parametrize("config", SLOW, ids=lambda config: config.name)
def test_no_rule_breaks_in_a_larger_world(config: Config) -> None:
    explore(config)


@pytest.mark.parametrize("defect", one_in_every_run(DEFECTS, "a called task loses its turn"))
def test_a_defect_is_found(defect: Defect) -> None:
    with defect.planted(), pytest.raises(Violation) as violation:
        explore(defect.config)

    assert violation.value.rule.startswith(defect.rule)
    assert violation.value.trace, "the shortest way to it is shown"


@cache
def worlds(*kinds: str) -> int:
    tasks = (Task(WaitMode.QUEUE, ordered=True), Task(WaitMode.PLACE))
    return explore(Config(" ".join(kinds), tasks, faults=2, kinds=frozenset(kinds))).worlds


@pytest.mark.parametrize("kind", sorted(FAULTS - {CRASH}))
def test_every_kind_of_fault_leads_to_worlds_of_its_own(kind: str) -> None:
    assert worlds(CRASH, kind) > worlds(CRASH)
