"""A soft time limit strikes anywhere; the lock is freed wherever it does."""

# mypy: allow-untyped-calls

from __future__ import annotations

from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded, WorkerTerminate

from celery_dlock.runtime import runtime
from tests.services.desk import Desk
from tests.services.lab import Lab
from tests.services.until import until
from tests.workers.conftest import MakeLab

#: Leases that outlast the tests: only a leave can free them.
LONG = {"ttl": 600.0}


def check_it_failed_and_the_key_is_free(lab: Lab, task_id: str) -> None:
    result = lab.app.AsyncResult(task_id)
    until("the limit struck", result.ready)
    assert isinstance(result.result, SoftTimeLimitExceeded)
    backend = runtime(lab.app).backend
    until("the key is free", lambda: not backend.peek("order:42").holders)


def test_in_the_body(make_lab: MakeLab) -> None:
    lab = make_lab(lock=LONG)

    with lab.worker("prefork", concurrency=1):
        sent = lab.app.tasks["apply"].apply_async(("42", 1), {"hold": "never"}, soft_time_limit=1)
        check_it_failed_and_the_key_is_free(lab, sent.id)
        assert lab.app.tasks["apply"].delay("42", 2).get(timeout=30) == 2

    assert lab.journal.read("end", number=1) == []


def test_between_the_lock_and_the_body(make_lab: MakeLab) -> None:
    sinks = ["tests.services.sinks:hold_what_is_acquired"]
    lab = make_lab(celery={"dlock_sinks": sinks}, lock=LONG)

    with lab.worker("prefork", concurrency=1):
        sent = lab.app.tasks["apply"].apply_async(("42", 1), soft_time_limit=1)
        lab.journal.wait_for("acquired", id=sent.id)
        check_it_failed_and_the_key_is_free(lab, sent.id)
        lab.go("sink")
        assert lab.app.tasks["apply"].delay("42", 2).get(timeout=30) == 2

    assert lab.journal.read("start", number=1) == []


def test_while_it_waits_in_its_slot(make_lab: MakeLab) -> None:
    lab = make_lab(lock={**LONG, "policy": "wait"})
    apply = lab.app.tasks["apply"]

    with lab.worker("prefork", concurrency=2):
        apply.delay("42", 1, hold="first")
        lab.journal.wait_for("start", number=1)
        sent = apply.apply_async(("42", 2), soft_time_limit=1)
        result = lab.app.AsyncResult(sent.id)
        until("the limit struck", result.ready)
        assert isinstance(result.result, SoftTimeLimitExceeded)

        # The holder has lost nothing by it
        (holder,) = runtime(lab.app).backend.peek("order:42").holders
        (first,) = lab.journal.read("start", number=1)
        assert holder.token == first["token"]
        lab.go("first")
        assert apply.delay("42", 3).get(timeout=30) == 3


@pytest.mark.filterwarnings("ignore:Exception raised outside body")
@pytest.mark.parametrize("goes_on", [False, True])
def test_one_whose_success_and_whose_failure_were_both_not_stored_does_not_run_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    """Its effects stand, so they do not come twice; its caller waits for a result in vain.

    Where it goes on, what follows cannot be published, and Celery stores no success at all.
    """
    ran = []

    @desk.locked("order", name="charge", acks_late=True)
    def charge() -> None:
        ran.append(1)

    stored = []

    def broken_off(_: Any, task_id: str, result: Any, state: str, **more: Any) -> None:
        stored.append(state)
        raise SoftTimeLimitExceeded(1) if state == "SUCCESS" else WorkerTerminate()

    def no_exchange(*_: Any, **__: Any) -> None:
        raise LookupError  # amqp's NotFound is as good as OperationalError over this transport

    result = charge.apply_async(link=charge.si() if goes_on else None)
    message = desk.take()
    assert message is not None
    with monkeypatch.context() as patch:
        patch.setattr(type(charge.backend), "store_result", broken_off)
        patch.setattr(desk.app.amqp, "send_task_message", no_exchange)
        with pytest.raises(WorkerTerminate):
            desk.run(message)
    assert stored == (["FAILURE"] if goes_on else ["SUCCESS", "FAILURE"])

    message.requeue()
    assert desk.deliver_all() == 1
    assert (ran, result.state) == ([1], "PENDING")
    assert desk.holders("order") == []
