"""The stand-in of Celery's worker does with every message what real workers do, over RabbitMQ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.services.rabbitmq import RabbitMQServer
from tests.simulation.real import Real
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.test_simulation import simulation

pytestmark = [pytest.mark.once, pytest.mark.slow]

Simulated = Mapping[str, Sequence[Mapping[str, Any]]]


@pytest.fixture(scope="module")
def simulated() -> Simulated:
    """What is seen of each scenario, with several seeds."""
    played = simulation("--scenarios", "10")
    assert played.returncode == 0, played.stderr
    seen: Simulated = json.loads(played.stdout)
    return seen


def test_nothing_that_is_seen_of_a_scenario_is_left_to_chance(simulated: Simulated) -> None:
    assert [*simulated] == [*SCENARIOS]
    assert [name for name, seen in simulated.items() if any(each != seen[0] for each in seen)] == []


@pytest.mark.server("rabbitmq")
@pytest.mark.parametrize("name", SCENARIOS)
def test_real_workers_do_what_the_stand_in_does(
    simulated: Simulated, name: str, rabbitmq_server: RabbitMQServer, tmp_path: Path
) -> None:
    with closing(Real(SCENARIOS[name], rabbitmq_server, tmp_path)) as stage:
        stage.start()
        seen = SCENARIOS[name].act(stage)

    assert seen == simulated[name][0]
