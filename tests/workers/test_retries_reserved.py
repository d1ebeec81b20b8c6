"""``reserve_retries=True``: between a task and its retry nobody else of the key has a turn."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery.utils.collections import LimitedSet
from celery.worker import state as worker_state
from kombu.message import Message

from celery_dlock import LockedTask, Queue, lock
from celery_dlock.core.state import KeyState
from celery_dlock.delivery.leaving import RETRY_GRACE
from celery_dlock.runtime import runtime
from celery_dlock.testing import ManualClock
from celery_dlock.worker.periodic import EndRevoked
from celery_dlock.worker.request import LockedRequest
from tests.services.desk import Desk
from tests.services.until import until
from tests.workers.conftest import MakeLab

pytestmark = pytest.mark.stores

KEY = "order:42"
RESERVES = Queue(reserve_retries=True)
Ran = list[tuple[int, int]]


@pytest.fixture
def ran() -> Ran:
    """Number and retries of each run, in their order."""
    return []


@pytest.fixture
def make(desk: Desk, ran: Ran) -> Callable[..., LockedTask]:
    def make(*, reserves: bool = True, **when: Any) -> LockedTask:
        policy = Queue(reserve_retries=reserves)

        @desk.locked("order:{order}", name="charge", bind=True, on_contention=policy)
        def charge(self: LockedTask, order: str, number: int) -> None:
            ran.append((number, self.request.retries))
            if number == 1 and not self.request.retries:
                raise self.retry(**when)

        return charge

    return make


def state(desk: Desk) -> KeyState:
    return runtime(desk.app).backend.peek(KEY)


@pytest.mark.every_store
@pytest.mark.parametrize(
    "when",
    [{"countdown": 30}, {"eta": datetime.now(UTC) + timedelta(seconds=30)}],
    ids=["countdown", "eta"],
)
def test_another_waits_until_the_retry_is_through(
    desk: Desk, clock: ManualClock, make: Callable[..., LockedTask], ran: Ran, when: Any
) -> None:
    charge = make(**when)
    charge.delay("42", 1)
    charge.delay("42", 2)

    desk.deliver()  # the first, which retries
    second = desk.deliver()
    assert second.acknowledged
    assert state(desk).parked == 1
    desk.deliver()  # the retry, now due
    desk.deliver()  # the second is woken

    assert ran == [(1, 0), (1, 1), (2, 0)]
    assert state(desk).grants == ()


def test_without_it_the_key_is_free_meanwhile(
    desk: Desk, make: Callable[..., LockedTask], ran: Ran
) -> None:
    charge = make(reserves=False, countdown=30)
    charge.delay("42", 1)
    charge.delay("42", 2)

    first, retry = desk.deliver(), None
    assert first.acknowledged
    desk.deliver()
    retry = desk.deliver()

    assert retry.headers["retries"] == 1
    assert ran == [(1, 0), (2, 0), (1, 1)]


@pytest.mark.parametrize("stays", [["shop:1"], []])
def test_only_the_keys_are_kept_that_the_retry_has_too(desk: Desk, stays: list[str]) -> None:
    @desk.locked(["order:{order}", "shop:{shop}"], bind=True, on_contention=RESERVES)
    def charge(self: LockedTask, order: int, shop: int) -> None:
        if not self.request.retries:
            raise self.retry(args=(order + 1,), kwargs={"shop": shop + (not stays)}, countdown=30)

    charge.delay(1, shop=1)
    desk.deliver()

    backend = runtime(desk.app).backend
    kept = [key for key in ("order:1", "order:2", "shop:1", "shop:2") if backend.peek(key).grants]
    assert kept == stays


def test_a_retry_that_never_comes_gives_way_after_a_while(
    desk: Desk, clock: ManualClock, make: Callable[..., LockedTask], ran: Ran
) -> None:
    charge = make(countdown=30)
    charge.delay("42", 1)
    desk.deliver()
    lost = desk.take()
    assert lost is not None
    charge.delay("42", 2)
    desk.deliver()

    clock.advance(30 + RETRY_GRACE - 1)
    desk.sweep()
    assert desk.size() == 0
    clock.advance(2)
    desk.sweep()

    desk.deliver()
    assert ran == [(1, 0), (2, 0)]


def test_a_retry_that_comes_before_its_predecessor_has_left_does_not_queue_behind_it(
    desk: Desk, make: Callable[..., LockedTask], ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a task whose retry is delivered while it is still leaving
    charge = make(countdown=0)
    manager = runtime(desk.app).manager
    release = manager.release
    parked: list[int] = []

    def deliver_first(*args: Any) -> bool:
        monkeypatch.setattr(manager, "release", release)
        retry = desk.deliver()
        parked.extend([retry.headers["retries"], state(desk).parked])
        return release(*args)

    monkeypatch.setattr(manager, "release", deliver_first)
    charge.delay("42", 1)
    desk.deliver()

    # Then it comes back, And finds its place kept
    assert parked == [1, 0]
    assert [grant.task.endswith(":1:0") for grant in state(desk).grants] == [True]
    desk.deliver()
    assert ran == [(1, 0), (1, 1)]


def end(desk: Desk, task_id: str) -> None:
    """What every worker does when it hears of a revocation."""

    class Worker:
        app = desk.app

    EndRevoked(Worker)._end({task_id})


def received(desk: Desk, message: Message) -> LockedRequest:
    """A message that is due later, in the hands of a worker."""
    return LockedRequest(
        message,
        on_ack=message.ack_log_error,
        on_reject=message.reject_log_error,
        app=desk.app,
        hostname="desk",
        eventer=desk.eventer,
        task=desk.app.tasks["charge"],
        connection_errors=(OSError,),
    )


@pytest.fixture
def retry(desk: Desk, make: Callable[..., LockedTask]) -> LockedRequest:
    """A retry that is due in an hour, in the hands of a worker; another task waits for its key."""
    charge = make(countdown=3600)
    charge.delay("42", 1)
    charge.delay("42", 2)
    desk.deliver()
    desk.deliver()
    message = desk.take()
    assert message is not None
    assert message.headers["retries"] == 1
    return received(desk, message)


def test_a_retry_that_is_revoked_gives_the_key_back_at_once(
    desk: Desk, retry: LockedRequest, ran: Ran
) -> None:
    end(desk, retry.id)

    desk.deliver()
    assert ran == [(1, 0), (2, 0)]
    assert state(desk).grants == ()


def test_of_another_task_nothing_is_given_back(desk: Desk, retry: LockedRequest) -> None:
    end(desk, "another")
    assert [grant.task for grant in state(desk).grants] == [f"{retry.id}:1:0"]


@pytest.mark.parametrize("expired", [False, True])
def test_a_retry_that_is_discarded_gives_the_key_back(
    desk: Desk, retry: LockedRequest, ran: Ran, expired: bool
) -> None:
    retry._announce_revoked("discarded", False, None, expired)

    desk.deliver()
    assert ran == [(1, 0), (2, 0)]


@pytest.mark.parametrize("reported", [True, False])
def test_a_task_that_is_revoked_while_it_runs_reserves_nothing_for_its_retry(
    desk: Desk, ran: Ran, monkeypatch: pytest.MonkeyPatch, reported: bool
) -> None:
    # Given a task that is revoked as its body runs, And whose retry Celery may not report
    @desk.locked("order:{order}", name="charge", bind=True, on_contention=RESERVES)
    def charge(self: LockedTask, order: str, number: int) -> None:
        ran.append((number, self.request.retries))
        if number == 1:
            worker_state.revoked.add(self.request.id)
            raise self.retry(countdown=3600)

    def fails(request: LockedRequest, kind: str, **_: Any) -> None:
        if kind == "task-retried":
            raise OSError("the event is not sent")

    monkeypatch.setattr(worker_state, "revoked", LimitedSet())
    charge.delay("42", 1)
    charge.delay("42", 2)
    with nullcontext() if reported else pytest.raises(OSError, match="is not sent"):
        if not reported:
            monkeypatch.setattr(LockedRequest, "send_event", fails)
        desk.deliver()

    # Then the next one runs
    desk.deliver()
    assert ran == [(1, 0), (2, 0)]


def test_a_revoked_retry_that_waits_in_the_store_ends_as_revoked(
    desk: Desk, make: Callable[..., LockedTask], clock: ManualClock, ran: Ran
) -> None:
    # Given a retry that has come too late, and waits
    charge = make(countdown=30)
    result = charge.delay("42", 1)
    desk.deliver()
    clock.advance(30 + RETRY_GRACE + 1)
    with lock(KEY, app=desk.app, timeout=0):
        message = desk.take()
        assert message is not None
        request = received(desk, message)
        desk.run(message)
        assert state(desk).parked == 1

        # When it is revoked, Then its result says so
        end(desk, request.id)
        desk.deliver()
    assert desk.result(result.id).state == "REVOKED"
    assert ran == [(1, 0)]


@pytest.mark.slow
@pytest.mark.parametrize("when", ["while it runs", "before it is due"])
def test_a_worker_gives_the_key_of_a_revoked_retry_to_the_next(
    make_lab: MakeLab, when: str
) -> None:
    lab = make_lab(lock={"policy": "queue and reserve"}, task={"acks_late": True})
    apply = lab.app.tasks["apply"]
    with lab.worker("prefork", concurrency=2) as worker:
        # Given a task that retries in an hour, and another one that waits for its key
        first = apply.delay("42", 1, hold="on", again=3600)
        lab.journal.wait_for("start", number=1)
        second = apply.delay("42", 2)
        store = runtime(lab.app).backend
        until("the second waits", lambda: store.peek(KEY).parked == 1)

        # When it is revoked
        if when == "while it runs":
            lab.app.control.revoke(first.id)
            until("it is told", lambda: "Tasks flagged as revoked" in worker.log)
            lab.go("on")
        else:
            lab.go("on")
            lab.journal.wait_for("end", number=1)
            until("the key is reserved", lambda: store.peek(KEY).grants)
            lab.app.control.revoke(first.id)

        # Then the other one runs
        assert second.get(timeout=60) == 2
        worker.stop()
    assert len(lab.journal.read("start", number=1)) == 1
