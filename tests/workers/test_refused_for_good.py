"""A task that ends because its key is taken has ended: a copy of it that comes later is dropped."""

from __future__ import annotations

import time
from contextvars import Context
from typing import Any

import pytest
from kombu.exceptions import OperationalError

from celery_dlock import Fail, LockTimeout, Queue, Reschedule, Skip, Wait, lock
from celery_dlock.core.events import Contended, Dropped
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim, Outcome
from celery_dlock.policies import Contention, GiveUp
from tests.services.desk import Desk
from tests.workers.conftest import charging, nothing_is_left

pytestmark = pytest.mark.stores


class Breaks:
    """A policy of a project's own, with a defect."""

    def decide(self, contention: Contention) -> GiveUp:
        raise ZeroDivisionError

    def patience(self, attempt: int) -> float:
        return 60.0


ENDS = [
    (Fail(), "FAILURE"),
    (Skip(), "SUCCESS"),
    (Wait(timeout=0), "FAILURE"),
    (Reschedule(max_attempts=0), "FAILURE"),
    (Reschedule(max_wait=0), "FAILURE"),
    (Breaks(), "FAILURE"),
]


@pytest.mark.parametrize(("policy", "ends"), ENDS, ids=lambda given: type(given).__name__)
def test_a_copy_does_not_run_after_a_final_refusal(desk: Desk, policy: Any, ends: str) -> None:
    # Given a task that has ended because its key is taken
    charge = charging(desk, on_contention=policy)
    with lock("order:42", app=desk.app, timeout=0):
        result = charge.delay("42")
        desk.deliver()
    assert result.state == ends

    # When a copy of it comes, that somebody had prefetched, and the key is free
    charge.apply_async(("42",), task_id=result.id)
    desk.deliver()

    assert desk.ran == []
    assert [event.reason for event in desk.happened(Dropped)] == ["done"]
    assert desk.result(result.id).state == ends
    assert nothing_is_left(desk)


def test_nor_after_its_queue_was_full(desk: Desk) -> None:
    charge = charging(desk, on_contention=Queue(max_waiting=1))
    with lock("order:42", app=desk.app, timeout=0):
        charge.delay("42")
        desk.deliver()
        refused = charge.delay("42")
        desk.deliver()
    assert refused.state == "FAILURE"
    desk.deliver_all()

    charge.apply_async(("42",), task_id=refused.id)
    desk.deliver()

    assert desk.ran == ["42"]
    assert nothing_is_left(desk)


@pytest.mark.parametrize("key", ["order:42", "stock:42"])
@pytest.mark.parametrize("then", ["order:42", "stock:42", "another"])
@pytest.mark.parametrize("policy", [Fail(), Reschedule(max_attempts=0)], ids=repr)
def test_any_of_several_keys_may_be_refused(desk: Desk, policy: Any, key: str, then: str) -> None:
    # Given a task that one of its two keys was refused
    charge = charging(desk, ["stock:{order}", "order:{order}"], on_contention=policy)
    with lock(key, app=desk.app, timeout=0):
        result = charge.delay("42")
        desk.deliver()

    with lock(then, app=desk.app, timeout=0):
        charge.apply_async(("42",), task_id=result.id)
        desk.deliver()

    assert desk.ran == []
    assert len(desk.happened(Contended)) == 1
    assert [event.reason for event in desk.happened(Dropped)] == ["done"]
    assert nothing_is_left(desk, "stock:42")
    assert nothing_is_left(desk, "order:42")


def said_of_one_refused(
    desk: Desk, charge: Any, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, Outcome]]:
    """What the store is told of a delivery of *charge* that ends because its key is taken."""
    store, said = desk.store, list[tuple[str, Outcome]]()
    leave = store.leave

    def leaving(claim: Claim, outcome: Outcome, message: bytes | None = None) -> Any:
        said.append((claim.key, outcome))
        return leave(claim, outcome, message)

    with lock("order:42", app=desk.app, timeout=0):
        charge.delay("42")
        with monkeypatch.context() as patch:
            patch.setattr(store, "leave", leaving)
            desk.deliver()
    return said


def test_where_nothing_is_remembered_the_store_is_told_nothing(desk: Desk) -> None:
    desk.app.conf.dlock_done_ttl = 0.0
    charge = charging(desk, on_contention=Fail())
    assert said_of_one_refused(desk, charge, desk.patch) == []


def test_one_word_to_the_store_is_enough(desk: Desk) -> None:
    charge = charging(desk, ["stock:{order}", "order:{order}"], on_contention=Fail())
    assert said_of_one_refused(desk, charge, desk.patch) == [("order:42", Outcome.DONE)]


def test_a_task_that_runs_eagerly_has_no_copies(desk: Desk) -> None:
    charge = charging(desk, on_contention=Fail())
    store, other = (desk.store, Claim("order:42", "other:0:0", "nonce", ttl=9 * SECOND))
    store.enter(other)
    assert charge.apply(("42",), task_id="one").state == "FAILURE"
    store.leave(other, Outcome.OVER)

    assert charge.apply(("42",), task_id="one").state == "SUCCESS"


# Rescheduling ends: after max_attempts or max_wait the task fails, and says how long it waited.


FOREVER_AGO = 4000.0


def test_after_max_attempts_refusals_the_task_fails_with_lock_timeout(desk: Desk) -> None:
    called = []

    @desk.app.task(name="errback")
    def errback(*args: Any) -> None:
        called.append(args)

    charge = charging(desk, on_contention=Reschedule(max_attempts=2))
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
    charge = charging(desk, on_contention=Reschedule(max_wait=3600))
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


def test_a_header_of_nonsense_is_no_history(desk: Desk) -> None:
    charge = charging(desk)
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
            again = desk.receive()
            assert again.headers["dlock"]["waits"] == 1


@pytest.mark.parametrize(
    ("kinds", "state"), [((ConnectionError, OperationalError), "FAILURE"), ((OSError,), "RETRY")]
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
