"""Debounced tasks with real workers, which wake them, and may die at the wrong moment."""

from __future__ import annotations

import pytest
from celery.exceptions import TaskRevokedError

from celery_dlock.ops.overview import lines_in_use
from celery_dlock.runtime import runtime
from tests.services import faults
from tests.services.lab import Lab
from tests.services.until import until
from tests.workers.conftest import MakeLab


def nothing_is_left(lab: Lab) -> bool:
    return not [*lines_in_use(runtime(lab.app).backend)]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_burst_runs_once_with_the_newest_arguments(make_lab: MakeLab, pool: str) -> None:
    lab = make_lab()
    index = lab.app.tasks["index"]
    with lab.worker(pool, concurrency=2):
        for order in "ab":
            results = [index.delay(order, number) for number in range(20)]
            assert {result.id for result in results} == {results[0].id}
            assert results[0].get(timeout=30) == 19

        until("nothing is left", lambda: nothing_is_left(lab))
    ran = [(entry["order"], entry["number"]) for entry in lab.journal.read("indexed")]
    assert ran == [("a", 19), ("b", 19)]


def test_whoever_revokes_it_before_it_is_due_ends_it(make_lab: MakeLab) -> None:
    lab = make_lab(celery={"worker_enable_remote_control": True})
    with lab.worker("threads", concurrency=1):
        result = lab.app.tasks["index"].delay("a", 1)
        result.revoke()

        with pytest.raises(TaskRevokedError):
            result.get(timeout=30)

        until("nothing is left", lambda: nothing_is_left(lab))
    assert lab.journal.read("indexed") == []


@pytest.mark.parametrize(
    "where",
    ["celery_dlock.locks.hold:Hold.ask", "celery_dlock.locks.manager:LockManager.take_back"],
    ids=["before its lock is asked for", "before its turn is given back"],
)
@pytest.mark.parametrize("acks_late", [True, False])
def test_a_worker_that_is_killed_before_it_has_the_lock_loses_nothing(
    make_lab: MakeLab, where: str, acks_late: bool
) -> None:
    """Over a broker that delivers nothing again: the store has the message until then."""
    lab = make_lab(task={"acks_late": acks_late}, faults=[faults.kill("before", where)])
    with lab.worker("solo", concurrency=1) as worker:
        result = lab.app.tasks["index"].delay("a", 1)
        until("the fault strikes", lambda: faults.struck(lab.folder))
        assert worker.process is not None
        worker.process.wait(30)

    with lab.worker("solo", concurrency=1):
        assert result.get(timeout=60) == 1
        until("nothing is left", lambda: nothing_is_left(lab))
    assert len(lab.journal.read("indexed")) == 1
