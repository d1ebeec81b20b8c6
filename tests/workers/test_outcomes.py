"""However a body ends, its lock is freed, and only a final end makes later copies duplicates."""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded, WorkerTerminate

from celery_dlock import Lease, LockedTask, LockLost, Queue, StaleFencingToken
from celery_dlock.core.events import Acquired, Dropped
from celery_dlock.core.state import Outcome, Run
from tests.services.desk import Desk

LOST = [LockLost("order:42"), StaleFencingToken("order:42", 1, 2)]


@pytest.mark.parametrize("acks_late", [True, False])
def test_after_retry_it_runs_again_and_is_no_duplicate(desk: Desk, acks_late: bool) -> None:
    tokens = []

    @desk.locked("order:{order}", name="charge", bind=True, acks_late=acks_late)
    def charge(self: Any, order: str, *, fencing_token: int) -> int:
        tokens.append(fencing_token)
        if self.request.retries < 2:
            raise self.retry(countdown=0)
        return int(self.request.retries)

    result = charge.apply_async(("42",))
    desk.deliver()
    assert result.state == "RETRY"
    assert desk.holders("order:42") == []
    desk.deliver_all()

    assert result.get() == 2
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 3
    assert desk.happened(Dropped) == []


@pytest.mark.parametrize(
    "options",
    [
        {"on_contention": "reschedule"},
        {"on_contention": "queue"},
        {"on_contention": Queue(keep=True)},
        {"on_contention": "queue", "reserve": "retry"},
    ],
    ids=repr,
)
def test_a_retry_whose_count_is_taken_back_is_no_duplicate(desk: Desk, options: Any) -> None:
    """As celery-heimdall does for its rate limits, and others do."""

    @desk.locked("order:{order}", name="charge", bind=True, unique="done", max_retries=0, **options)
    def charge(self: Any, order: str) -> int:
        desk.ran.append(self.request.retries)
        if len(desk.ran) < 3:
            self.request.retries -= 1
            raise self.retry(countdown=0, max_retries=None)
        return len(desk.ran)

    result = charge.apply_async(("42",))
    desk.deliver()
    assert charge.delay("42").id == result.id
    desk.deliver_all()

    assert (result.result, desk.ran) == (3, [0, 0, 0])
    assert desk.holders("order:42") == []
    assert not charge.delay("42").is_duplicate


def by_decorator(desk: Desk, body: Callable[..., Any]) -> LockedTask:
    return desk.locked("order:{order}", name="charge", bind=True, autoretry_for=(Exception,))(body)


def by_decorator_with_exceptions(desk: Desk, body: Callable[..., Any]) -> LockedTask:
    options = {"autoretry_for": (Exception,), "dont_autoretry_for": (KeyError,)}
    return desk.locked("order:{order}", name="charge", bind=True, **options)(body)


def by_base(desk: Desk, body: Callable[..., Any]) -> LockedTask:
    options = {"autoretry_for": (Exception,), "dont_autoretry_for": (KeyError,)}
    task: LockedTask = desk.app.task(
        base=LockedTask, lock_key="order:{order}", name="charge", bind=True, **options
    )(body)
    return task


def by_class(desk: Desk, body: Callable[..., Any]) -> LockedTask:
    class Base(LockedTask):
        abstract = True
        autoretry_for = (Exception,)
        dont_autoretry_for = (KeyError,)

    return desk.locked("order:{order}", name="charge", bind=True, base=Base)(body)


DEFINED = [by_decorator, by_decorator_with_exceptions, by_base, by_class]


@pytest.mark.parametrize("error", LOST, ids=["lost", "stale"])
@pytest.mark.parametrize("define", DEFINED)
def test_a_lost_lock_is_no_failure_and_spends_no_retry(
    desk: Desk, error: Exception, define: Callable[..., LockedTask]
) -> None:
    runs, called = [], []

    @desk.app.task(name="errback")
    def errback(*args: Any) -> None:
        called.append(args)

    def charge(self: Any, order: str) -> int:
        runs.append(self.request.retries)
        if len(runs) == 1:
            raise error
        return int(self.request.retries)

    task = define(desk, charge)
    result = task.apply_async(("42",), link_error=errback.si())
    desk.deliver()

    assert result.state == "RETRY"
    assert type(result.result) is type(error)
    assert desk.holders("order:42") == []
    again = desk.receive()
    assert (again.headers["id"], again.headers["retries"]) == (result.id, 0)
    desk.run(again)
    assert result.get() == 0
    assert runs == [0, 0]
    assert called == []


@pytest.mark.parametrize("policy", ["reschedule", "skip"])
def test_a_lost_lock_that_a_duplicate_holds_keeps_its_message(desk: Desk, policy: str) -> None:
    @desk.locked("order:{order}", name="charge", on_contention=policy)
    def charge(order: str, *, lease: Lease) -> None:
        # Given that the store gives it up, and a copy of the message gets the key
        store, (term,) = desk.store, lease.terms
        store.leave(term.claim, Outcome.ABANDONED)
        assert isinstance(store.enter(replace(term.claim, nonce="copy")).verdict, Run)
        raise LockLost("order:42")

    result = charge.apply_async(("42",))
    desk.deliver()

    # Then it comes back, should the copy's worker die, and leaves the state to the copy
    assert desk.size() == 1
    assert result.state == "PENDING"


@pytest.mark.parametrize("define", DEFINED[1:])
def test_the_projects_own_exceptions_count(desk: Desk, define: Callable[..., LockedTask]) -> None:
    def charge(self: Any, order: str) -> None:
        raise KeyError(order)

    task = define(desk, charge)
    result = task.apply_async(("42",))
    desk.deliver()

    assert result.state == "FAILURE"
    assert desk.size() == 0


def test_a_lock_that_is_lost_again_and_again_ends_in_a_visible_failure(desk: Desk) -> None:
    @desk.locked("order:{order}", name="charge")
    def charge(order: str) -> None:
        raise LockLost("order:42")

    result = charge.apply_async(("42",))
    runs = desk.deliver_all()

    assert runs == 11
    assert result.state == "FAILURE"
    assert isinstance(result.result, LockLost)


def test_ignore_frees_the_lock_and_leaves_no_result(desk: Desk) -> None:
    @desk.locked("order:{order}", name="charge", acks_late=True)
    def charge(order: str, again: bool = False) -> str:
        if not again:
            raise Ignore
        return "ran"

    result = charge.apply_async(("42",))
    desk.deliver()
    assert result.state == "PENDING"
    assert desk.holders("order:42") == []

    charge.apply_async(("42", True), task_id=result.id)
    desk.deliver()
    assert result.get() == "ran"


def test_what_the_body_rejects_comes_back_and_runs(desk: Desk) -> None:
    @desk.locked("order:{order}", name="charge", acks_late=True)
    def charge(order: str, *, fencing_token: int) -> str:
        desk.ran.append(fencing_token)
        if len(desk.ran) == 1:
            raise Reject("not now", requeue=True)
        return "ran"

    result = charge.apply_async(("42",))
    desk.deliver()
    assert desk.holders("order:42") == []
    assert desk.size() == 1
    desk.deliver()

    assert result.get() == "ran"
    assert desk.ran[0] < desk.ran[1]


@pytest.mark.parametrize("acks_late", [True, False])
def test_a_replacement_keeps_its_id_and_its_key(desk: Desk, acks_late: bool) -> None:
    @desk.locked("order:{order}", name="charge", bind=True, acks_late=acks_late)
    def charge(self: Any, order: str, part: int = 0) -> Any:
        if part == 0:
            return self.replace(charge.s(order, 1))
        return (self.request.id, part)

    result = charge.apply_async(("42",))
    desk.deliver()
    assert desk.holders("order:42") == []
    desk.deliver_all()

    assert result.get() == [result.id, 1]
    assert len(desk.happened(Acquired)) == 2
    assert desk.happened(Dropped) == []


@pytest.mark.filterwarnings("ignore:Exception raised outside body")
@pytest.mark.parametrize("goes_on", [False, True])
def test_one_whose_success_and_whose_failure_were_both_not_stored_does_not_run_again(
    desk: Desk, goes_on: bool
) -> None:
    """Its effects stand, so they do not come twice; its caller waits for a result in vain.

    Where it goes on, what follows cannot be published, and Celery stores no success at all.
    """

    @desk.locked("order", name="charge", acks_late=True)
    def charge() -> None:
        desk.ran.append(1)

    stored = []

    def broken_off(_: Any, task_id: str, result: Any, state: str, **more: Any) -> None:
        stored.append(state)
        raise SoftTimeLimitExceeded(1) if state == "SUCCESS" else WorkerTerminate()

    def no_exchange(*_: Any, **__: Any) -> None:
        raise LookupError  # amqp's NotFound is as good as OperationalError over this transport

    result = charge.apply_async(link=charge.si() if goes_on else None)
    message = desk.receive()
    with desk.patch.context() as patch:
        patch.setattr(type(charge.backend), "store_result", broken_off)
        patch.setattr(desk.app.amqp, "send_task_message", no_exchange)
        with pytest.raises(WorkerTerminate):
            desk.run(message)
    assert stored == (["FAILURE"] if goes_on else ["SUCCESS", "FAILURE"])

    message.requeue()
    assert desk.deliver_all() == 1
    assert (desk.ran, result.state) == ([1], "PENDING")
    assert desk.holders("order") == []
