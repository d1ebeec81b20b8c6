"""The rules hold in every world that can be reached, and a broken rule is noticed."""

from __future__ import annotations

import pytest

from tests.model.defects import DEFECTS, Defect
from tests.model.explore import Config, explore
from tests.model.key import Violation
from tests.model.worlds import QUICK, SLOW
from tests.services.planted import one_in_every_run, planted


@pytest.mark.parametrize("config", QUICK, ids=lambda config: config.name)
def test_no_rule_breaks_in_a_small_world(config: Config) -> None:
    explore(config)


@pytest.mark.slow
@pytest.mark.parametrize("config", SLOW, ids=lambda config: config.name)
def test_no_rule_breaks_in_a_larger_world(config: Config) -> None:
    explore(config)


@pytest.mark.parametrize("defect", one_in_every_run(DEFECTS, "a woken task loses its turn"))
def test_a_defect_is_found(defect: Defect) -> None:
    with (
        planted(defect.module, defect.function, defect.instead),
        pytest.raises(Violation) as violation,
    ):
        explore(defect.config)

    assert violation.value.rule.startswith(defect.rule)
    assert violation.value.trace, "the shortest way to it is shown"
