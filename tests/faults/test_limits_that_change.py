"""The limit of a key rises and falls while tasks wait for it, and their worker may be killed."""

from __future__ import annotations

from typing import Any

import pytest

from celery_dlock.core.state import KeyState
from celery_dlock.runtime import runtime
from tests.faults.conftest import MakeLab
from tests.services.lab import Lab
from tests.services.redelivery import deliver_again
from tests.services.until import until

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]

TENANT, KEY = "acme", "plan:acme"


def state(lab: Lab) -> KeyState:
    return runtime(lab.app).backend.peek(KEY)


def holders(lab: Lab) -> int:
    return len(state(lab).holders)


def has_limit(lab: Lab, number: int) -> None:
    """From now on the function of the tasks says this."""
    (lab.folder / f"plan-{TENANT}.new").write_text(f"{number}")
    (lab.folder / f"plan-{TENANT}.new").rename(lab.folder / f"plan-{TENANT}")


def started(lab: Lab) -> list[int]:
    return [entry["number"] for entry in lab.journal.read("start")]


def eight_run_of_twelve(lab: Lab) -> list[Any]:
    """Two may run and ten wait, then eight may and the first one ends: the results of all."""
    load: Any = lab.app.tasks["load by plan"]
    has_limit(lab, 2)
    results = [load.delay(TENANT, number, hold=f"{number}") for number in range(12)]
    lab.journal.wait_for("start", 2)
    until("ten are parked", lambda: state(lab).parked == 10)
    has_limit(lab, 8)
    lab.go(f"{started(lab)[0]}")
    lab.journal.wait_for("start", 9)
    until("eight hold it, and three wait", lambda: (holders(lab), state(lab).parked) == (8, 3))
    return results


def all_go_and_end(lab: Lab, results: list[Any]) -> None:
    for number in range(len(results)):
        lab.go(f"{number}")
    assert [result.get(timeout=60) for result in results] == list(range(len(results)))
    until("nobody has it", lambda: state(lab) == KeyState())


def each_starts_alone(entries: list[dict[str, Any]], running: int) -> bool:
    """Whether each of *entries* that starts does so when none of those *running* is left."""
    for entry in entries:
        if entry["what"] == "start" and running:
            return False
        running += 1 if entry["what"] == "start" else -1
    return True


def test_a_limit_rises_and_falls_while_tasks_wait(make_lab: MakeLab) -> None:
    lab = make_lab(lock={"policy": "queue"})
    with lab.worker("prefork", concurrency=10):
        results = eight_run_of_twelve(lab)
        has_limit(lab, 1)
        before = len(lab.journal.read())
        for number in started(lab):
            lab.go(f"{number}")
        lab.journal.wait_for("start", 10)
        results.append(lab.app.tasks["load by plan"].delay(TENANT, 12))
        until("one holds it, and three wait", lambda: (holders(lab), state(lab).parked) == (1, 3))
        all_go_and_end(lab, results)

    assert each_starts_alone(lab.journal.read()[before:], running=8)


def test_a_limit_falls_as_the_worker_is_killed(make_lab: MakeLab) -> None:
    lab = make_lab(lock={"policy": "queue"})
    with lab.worker("prefork", concurrency=10) as worker:
        results = eight_run_of_twelve(lab)
        has_limit(lab, 1)
        worker.kill()
        before = len(lab.journal.read())
        deliver_again(lab.app)
        worker.start()
        until("one holds it, and ten wait", lambda: (holders(lab), state(lab).parked) == (1, 10))
        all_go_and_end(lab, results)

    assert each_starts_alone(lab.journal.read()[before:], running=0)
    assert len(started(lab)) == 9 + 11  # the eight that were killed run again
