"""A worker dies between the provider's charge and its own end; the next one charges no more."""

from __future__ import annotations

import pytest

from tests.faults.conftest import MakeLab
from tests.services.provider import provider
from tests.services.redelivery import deliver_again, work_off

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]


@pytest.mark.parametrize("task", ["charge locked", "charge plainly"])
def test_a_task_that_is_delivered_again_charges_once(make_lab: MakeLab, task: str) -> None:
    lab = make_lab()
    with provider() as paid, lab.worker(concurrency=1) as worker:
        result = lab.app.tasks[task].delay(paid.url, "42")
        lab.journal.wait_for("charged")
        worker.kill()
        deliver_again(lab.app)
        lab.go("charged")
        work_off(lab, worker)

    assert result.state == "SUCCESS"
    assert len(paid.calls) == 2
    assert list(paid.charges.values()) == [b"10"]
