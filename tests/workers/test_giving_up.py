"""Rescheduling ends: after max_attempts or max_wait the task fails, and says how long it waited."""

from __future__ import annotations

import time
from contextvars import Context
from typing import Any

import pytest
from kombu.exceptions import OperationalError

from celery_dlock import LockTimeout, Policy, Reschedule, Wait, lock
from tests.services.desk import Desk
from tests.workers.conftest import nothing_is_left

pytestmark = pytest.mark.stores

FOREVER_AGO = 4000.0


def test_after_max_attempts_refusals_the_task_fails_with_lock_timeout(desk: Desk) -> None:
    called = []

    @desk.app.task(name="errback")
    def errback(*args: Any) -> None:
        called.append(args)

    @desk.locked("order:{order}", name="charge", on_contention=Reschedule(max_attempts=2))
    def charge(order: str) -> None: ...

    with lock("order:42", app=desk.app, timeout=0) as lease:
        result = charge.apply_async(("42",), link_error=errback.si("failed"))
        delivered = desk.deliver_all()

    # Two refusals are put up with, the third is the end
    assert delivered == 3
    assert called == [("failed",)]
    assert result.state == "FAILURE"
    assert isinstance(result.result, LockTimeout)
    assert result.result.key == "order:42"
    assert lease.owner.startswith(str(result.result.holder))
    assert 0 < result.result.seconds_left <= 30


def test_after_max_wait_the_task_fails_with_lock_timeout(desk: Desk) -> None:
    @desk.locked("order:{order}", name="charge", on_contention=Reschedule(max_wait=3600))
    def charge(order: str) -> None: ...

    # Given a task that was first refused more than an hour ago, and one that was less
    for task_id, ago in (("old", FOREVER_AGO), ("young", 3000.0)):
        past = {"task": f"{task_id}:0:0", "waits": 9, "since": time.time() - ago}
        charge.apply_async(("42",), task_id=task_id, headers={"dlock": past})

    with lock("order:42", app=desk.app, timeout=0):
        desk.deliver()
        desk.deliver()

    assert desk.result("old").state == "FAILURE"
    assert isinstance(desk.result("old").result, LockTimeout)
    assert FOREVER_AGO <= desk.result("old").result.waited < FOREVER_AGO + 60
    assert desk.result("young").state == "RETRY"
    assert desk.size() == 1


@pytest.mark.parametrize("policy", [Reschedule(max_attempts=0), Wait(timeout=0)])
def test_giving_up_leaves_nothing_behind_in_the_queue_of_the_key(
    desk: Desk, policy: Policy
) -> None:
    @desk.locked("order:{order}", name="charge", on_contention=policy)
    def charge(order: str) -> None: ...

    with lock("order:42", app=desk.app, timeout=0):
        result = charge.apply_async(("42",))
        desk.deliver()

    # Neither a lock nor a place, behind which messages would have to wait until it expires
    assert result.state == "FAILURE"
    assert nothing_is_left(desk)


def test_a_header_of_nonsense_is_no_history(desk: Desk) -> None:
    @desk.locked("order:{order}", name="charge")
    def charge(order: str) -> None: ...

    forged: list[Any] = [
        "a string",
        ["a", "list"],
        {"task": "1:0:0", "waits": "many", "since": "yesterday"},
        {"task": "1:0:0", "waits": -3, "since": None, "away": True},
        {"task": "1:0:0", "waits": 10**400, "since": 10**400, "called": float("nan")},
        {"waits": 10**9, "since": 0},
    ]
    with lock("order:42", app=desk.app, timeout=0):
        for header in forged:
            charge.apply_async(("42",), task_id="1", headers={"dlock": header})
            desk.deliver()
            again = desk.take()
            assert again is not None, header
            assert again.headers["dlock"]["waits"] == 1


@pytest.mark.parametrize(
    ("kinds", "state"),
    [((ConnectionError, OperationalError), "FAILURE"), ((OSError,), "RETRY")],
)
def test_a_timeout_in_a_body_is_retried_for_an_os_error_and_not_for_a_lost_connection(
    desk: Desk, kinds: tuple[type[Exception], ...], state: str
) -> None:
    @desk.locked("order:{order}", name="charge", autoretry_for=kinds)
    def charge(order: str) -> None:
        with lock("report", app=desk.app, timeout=0.01):
            pass

    with lock("report", app=desk.app, timeout=0):
        charge.apply_async(("42",), task_id="charge-1")
        message = Context().run(desk.deliver)  # in this one the key is held

    assert (message._state, desk.result("charge-1").state) == ("ACK", state)
