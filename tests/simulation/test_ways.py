"""The shipped worker and the one of ``tests/model`` take the same steps."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from celery_dlock.core.state import WaitMode
from tests.model.config import Config, Task
from tests.model.follow import steps_of
from tests.simulation.plan import STRIKES
from tests.simulation.test_simulation import simulation

pytestmark = [pytest.mark.once, pytest.mark.slow]

NOT, PLACE, KEPT = Task(WaitMode.NOT), Task(WaitMode.PLACE), Task(keep=True, retries_as=1)
LOOKS, ONE_WAITS = Task(looks=True, by_main=True), Task(max_waiting=1, by_main=True)
NEWEST = Task(max_waiting=1, replaces=True, newest=True)

#: In these worlds a worker of the model takes every step that it has, but for those of releases
#: that change, and of workers that do not know a task.
WORLDS = (
    Config("kept", (KEPT, Task(keep=True, gives_up=True)), faults=1),
    Config("all ways", (Task(WaitMode.PLACE, retries_as=1), PLACE, NOT), faults=1),
    Config("looks", (LOOKS, ONE_WAITS), faults=1),
    Config("the newest", (NEWEST, NEWEST), faults=1),
)

#: What the model's worker does, and the shipped one does not in these schedules; and why.
NOT_PLAYED: Mapping[str, str] = {
    r" -> enter, reply lost -> ": "a store's client asks again; in memory there is none",
    r"leave \w+ -> leave \w+ -> end callbacks": "a time limit: such schedules are not followed",
    r"leave \w+ -> leave \w+ -> requeue": "a cold shutdown: such schedules are not followed",
    r"enter -> enter(, and nobody hears it| is not heard) -> leave unused": "a time limit, again",
    r"leave unused -> leave unused -> again": "what comes of that",
}


#: What needs two faults at one place, or a fault at a rare one: few schedules have it.
SELDOM = (
    r"(look|park|leave \w+) -> .*(is not heard|nobody hears it) -> .*",
    r"effect -> (is refused by the fence|sees that its lock is lost) -> leave repeat",
    r"retry -> cannot be published -> leave \w+",
    r"leave repeat -> leave repeat -> \w+",
    r"again -> cannot be published -> requeue",
    r"say \w+ -> .*",
)


@cache
def _played() -> Any:
    return json.loads(simulation("--modelled", "250").stdout)


def in_short(steps: set[str]) -> set[str]:
    """Without what the store has answered."""
    own = (step for step in steps if not any(strike in step for strike in STRIKES))
    return {re.sub(r": \w+", "", step) for step in own}


def test_the_shipped_worker_takes_no_step_that_the_model_does_not_know() -> None:
    assert _played()["wrong"] == []


def test_the_model_takes_no_step_that_the_shipped_worker_does_not() -> None:
    left = in_short(steps_of(*WORLDS)) - in_short(set(_played()["steps"]))
    known = (*NOT_PLAYED, *SELDOM)

    assert {step for step in left if not any(re.fullmatch(each, step) for each in known)} == set()
    for each in NOT_PLAYED:
        assert any(re.fullmatch(each, step) for step in left), f"{each} is played by now"


def test_a_drift_of_what_ships_is_noticed() -> None:
    played = simulation("--modelled", "20", "--defect", "a task that has failed is only over")

    assert "is not in the model" in played.stdout
