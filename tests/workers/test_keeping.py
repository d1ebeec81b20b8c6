"""``keep=True``: the store has the message until the task is through: a killed worker loses none.

The broker here redelivers nothing, and acknowledgement is early: without ``keep`` the task of a
worker that dies is gone, as in Celery.
"""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from celery_dlock import Queue
from celery_dlock.core.state import KeyState
from celery_dlock.runtime import runtime
from tests.services.desk import Desk
from tests.services.lab import Lab
from tests.services.until import until
from tests.workers.conftest import MakeLab

pytestmark = pytest.mark.stores

KEY = "order:42"


def peek(lab: Lab) -> KeyState:
    return runtime(lab.app).backend.peek(KEY)


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_task_whose_worker_is_killed_runs_again(make_lab: MakeLab, pool: str) -> None:
    lab = make_lab(lock={"policy": "queue and keep", "ttl": 1.0})
    with lab.worker(pool, concurrency=2) as worker:
        # Given a task that runs and another one that waits
        first = lab.app.tasks["apply"].delay("42", 1, hold="first")
        lab.journal.wait_for("start", number=1)
        second = lab.app.tasks["apply"].delay("42", 2)
        until("the other waits", lambda: peek(lab).parked == 2)

        # When the worker is killed
        worker.send(signal.SIGKILL, whole_group=True)
        lab.go("first")
    with lab.worker(pool, concurrency=2):
        # Then both run, in their order
        assert first.get(timeout=60) == 1
        assert second.get(timeout=60) == 2
        until("they have left", lambda: peek(lab) == KeyState())

    assert [entry["number"] for entry in lab.journal.read("start")] == [1, 1, 2]


@pytest.mark.slow
def test_without_it_the_task_is_gone(make_lab: MakeLab) -> None:
    lab = make_lab(lock={"policy": "queue", "ttl": 1.0})
    with lab.worker("prefork", concurrency=2) as worker:
        lab.app.tasks["apply"].delay("42", 1, hold="first")
        lab.journal.wait_for("start", number=1)
        second = lab.app.tasks["apply"].delay("42", 2)
        until("the other waits", lambda: peek(lab).parked == 1)
        worker.send(signal.SIGKILL, whole_group=True)
    with lab.worker("prefork", concurrency=2):
        assert second.get(timeout=60) == 2

    assert [entry["number"] for entry in lab.journal.read("end")] == [2]


@pytest.mark.parametrize("ends", ["well", "badly"])
def test_what_is_through_leaves_nothing_behind(desk: Desk, ends: str) -> None:
    @desk.locked("order:{order}", name="charge", on_contention=Queue(keep=True))
    def charge(order: str) -> None:
        assert runtime(desk.app).backend.peek(KEY).parked == 1
        if ends == "badly":
            raise ValueError(order)

    result = charge.delay("42")
    desk.deliver()

    assert result.state == ("SUCCESS" if ends == "well" else "FAILURE")
    # But how far to the front somebody has stood, on a store that goes on from there
    assert replace(runtime(desk.app).backend.peek(KEY), first=0) == KeyState()
    assert runtime(desk.app).backend.sweep().next_in is None
    assert desk.size() == 0


def test_a_task_that_retries_is_kept_under_its_next_attempt_only(desk: Desk) -> None:
    ran: list[int] = []

    @desk.locked("order:{order}", name="charge", bind=True, on_contention=Queue(keep=True))
    def charge(self: object, order: str) -> None:
        ran.append(self.request.retries)  # type: ignore[attr-defined]
        if not self.request.retries:  # type: ignore[attr-defined]
            raise self.retry(countdown=0)  # type: ignore[attr-defined]

    charge.delay("42")
    desk.deliver_all()

    assert ran == [0, 1]
    assert runtime(desk.app).backend.peek(KEY).parked == 0
