"""The clock of a worker is wrong by hours, or steps. Leases go by that of the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_dlock.runtime import runtime
from tests.faults.conftest import MakeLab, all_have_left
from tests.services.effects import Effects
from tests.services.lab import Lab
from tests.services.machine import Machine
from tests.services.until import until
from tests.services.worker import Worker

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow, pytest.mark.once]

HOUR = 3600


@pytest.fixture
def lab(make_lab: MakeLab) -> Lab:
    return make_lab(lock={"ttl": 1.5, "policy": "queue"})


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine")


def worker_on(machine: Machine, lab: Lab) -> Worker:
    worker = Worker(lab.folder, lab.config, "elsewhere", "threads", 4)
    worker._env |= machine.env
    return worker


def test_what_a_worker_whose_clock_is_ahead_takes_for_abandoned_does_not_run_twice(
    lab: Lab, machine: Machine, effects: Effects
) -> None:
    with lab.worker(concurrency=1):
        # Given a body whose message is not acknowledged yet
        first = lab.app.tasks["pay"].delay("42", 1, hold="body")
        lab.journal.wait_for("start")

        # When a worker comes for which it has not been for longer than the broker waits
        machine.clock_is_ahead(2 * HOUR)
        with worker_on(machine, lab) as ahead:
            until("it is delivered again", lambda: f"[{first.id}] received" in ahead.log)
            lab.go("body")

            assert first.get(timeout=30) == 1
            all_have_left(lab, "42")
    assert len(lab.journal.read("start")) == 1
    assert len(effects.payments()) == 1


def test_a_worker_whose_clock_steps_keeps_its_lock(lab: Lab, machine: Machine) -> None:
    store = runtime(lab.app).backend

    def ends() -> int:
        (holder,) = store.peek("order:42").holders
        return holder.expires

    with worker_on(machine, lab):
        paid = lab.app.tasks["pay"].delay("42", 1, hold="body")
        lab.journal.wait_for("start")
        for ahead in (HOUR, -HOUR, 0):
            machine.clock_is_ahead(ahead)
            before = ends()
            until("it is renewed", lambda before=before: ends() > before)  # type: ignore[misc]
        lab.go("body")
        assert paid.get(timeout=30) == 1
        all_have_left(lab, "42")
    assert lab.journal.read("lost") == []
