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

from celery_dlock import LockedTask, Queue
from celery_dlock.runtime import runtime
from celery_dlock.testing import ManualClock
from celery_dlock.worker.request import LockedRequest
from tests.services.desk import Desk
from tests.workers.conftest import revoke

pytestmark = pytest.mark.stores

KEY = "order:42"
RESERVES = Queue(reserve_retries=True)


@pytest.fixture
def make(desk: Desk) -> Callable[..., LockedTask]:
    def make(*, reserves: bool = True, **when: Any) -> LockedTask:
        policy = Queue(reserve_retries=reserves)

        @desk.locked("order:{order}", name="charge", bind=True, on_contention=policy)
        def charge(self: LockedTask, order: str, number: int) -> None:
            desk.ran.append((number, self.request.retries))
            if number == 1 and not self.request.retries:
                raise self.retry(**when)

        return charge

    return make


@pytest.mark.every_store
@pytest.mark.parametrize(
    "when",
    [{"countdown": 30}, {"eta": datetime.now(UTC) + timedelta(seconds=30)}],
    ids=["countdown", "eta"],
)
def test_another_waits_until_the_retry_is_through(
    desk: Desk, clock: ManualClock, make: Callable[..., LockedTask], when: Any
) -> None:
    charge = make(**when)
    charge.delay("42", 1)
    charge.delay("42", 2)

    desk.deliver()  # the first, which retries
    second = desk.deliver()
    assert second.acknowledged
    assert desk.store.peek(KEY).parked == 1
    desk.deliver()  # the retry, now due
    desk.deliver()  # the second is woken

    assert desk.ran == [(1, 0), (1, 1), (2, 0)]
    assert desk.store.peek(KEY).grants == ()


@pytest.mark.parametrize("stays", [["shop:1"], []])
def test_only_the_keys_are_kept_that_the_retry_has_too(desk: Desk, stays: list[str]) -> None:
    @desk.locked(["order:{order}", "shop:{shop}"], bind=True, on_contention=RESERVES)
    def charge(self: LockedTask, order: int, shop: int) -> None:
        if not self.request.retries:
            raise self.retry(args=(order + 1,), kwargs={"shop": shop + (not stays)}, countdown=30)

    charge.delay(1, shop=1)
    desk.deliver()

    backend = desk.store
    kept = [key for key in ("order:1", "order:2", "shop:1", "shop:2") if backend.peek(key).grants]
    assert kept == stays


def test_a_retry_that_comes_before_its_predecessor_has_left_does_not_queue_behind_it(
    desk: Desk, make: Callable[..., LockedTask]
) -> None:
    # Given a task whose retry is delivered while it is still leaving
    charge = make(countdown=0)
    manager = runtime(desk.app).manager
    release = manager.release
    parked: list[int] = []

    def deliver_first(*args: Any) -> bool:
        desk.patch.setattr(manager, "release", release)
        retry = desk.deliver()
        parked.extend([retry.headers["retries"], desk.store.peek(KEY).parked])
        return release(*args)

    desk.patch.setattr(manager, "release", deliver_first)
    charge.delay("42", 1)
    desk.deliver()

    assert parked == [1, 0]
    assert [grant.task.endswith(":1:0") for grant in desk.store.peek(KEY).grants] == [True]
    desk.deliver()
    assert desk.ran == [(1, 0), (1, 1)]


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
    message = desk.receive()
    assert message.headers["retries"] == 1
    return received(desk, message)


def test_a_revoked_retry_gives_the_key_back(desk: Desk, retry: LockedRequest) -> None:
    revoke(desk, retry.id)

    desk.deliver()
    assert desk.ran == [(1, 0), (2, 0)]
    assert desk.store.peek(KEY).grants == ()


@pytest.mark.parametrize("expired", [False, True])
def test_a_discarded_retry_frees_the_key(desk: Desk, retry: LockedRequest, expired: bool) -> None:
    retry._announce_revoked("discarded", False, None, expired)

    desk.deliver()
    assert desk.ran == [(1, 0), (2, 0)]


@pytest.mark.parametrize("reported", [True, False])
def test_a_task_revoked_while_it_runs_reserves_nothing(desk: Desk, reported: bool) -> None:
    # Given a task that is revoked as its body runs, And whose retry Celery may not report
    @desk.locked("order:{order}", name="charge", bind=True, on_contention=RESERVES)
    def charge(self: LockedTask, order: str, number: int) -> None:
        desk.ran.append((number, self.request.retries))
        if number == 1:
            worker_state.revoked.add(self.request.id)
            raise self.retry(countdown=3600)

    def fails(request: LockedRequest, kind: str, **_: Any) -> None:
        if kind == "task-retried":
            raise OSError("the event is not sent")

    desk.patch.setattr(worker_state, "revoked", LimitedSet())
    charge.delay("42", 1)
    charge.delay("42", 2)
    with nullcontext() if reported else pytest.raises(OSError, match="is not sent"):
        if not reported:
            desk.patch.setattr(LockedRequest, "send_event", fails)
        desk.deliver()

    desk.deliver()
    assert desk.ran == [(1, 0), (2, 0)]
