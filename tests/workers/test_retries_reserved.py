"""``reserve="retry"``: between a task and its retry nobody else of the key has a turn."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery.utils.collections import LimitedSet
from celery.worker import state as worker_state

from celery_dlock import FullJitter, LockedTask, Reschedule, Shared, Wait, lock
from celery_dlock.runtime import runtime
from celery_dlock.testing import ManualClock
from celery_dlock.worker.request import LockedRequest
from tests.services.desk import Desk
from tests.workers.conftest import received, revoke

pytestmark = pytest.mark.stores

KEY = "order:42"
RESERVES: dict[str, Any] = {"on_contention": "queue", "reserve": "retry"}
SOON = Reschedule(backoff=FullJitter(base=0.1, cap=0.1))
EVERY_POLICY = ["fail", "skip", SOON, Wait(timeout=0.1), "queue"]


@pytest.fixture
def policy(request: pytest.FixtureRequest) -> Any:
    return getattr(request, "param", "queue")


@pytest.fixture
def make(desk: Desk, policy: Any) -> Callable[..., LockedTask]:
    def make(**when: Any) -> LockedTask:
        options = RESERVES | {"on_contention": policy}

        @desk.locked("order:{order}", name="charge", bind=True, **options)
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


@pytest.mark.parametrize("policy", EVERY_POLICY, indirect=True, ids=repr)
def test_nobody_comes_between_whatever_the_policy(
    desk: Desk, make: Callable[..., LockedTask]
) -> None:
    charge = make(countdown=30)
    charge.delay("42", 1)
    charge.delay("42", 2)

    desk.deliver()  # the first, which retries
    desk.deliver()
    assert desk.ran == [(1, 0)]
    desk.deliver_all()

    assert desk.ran[:2] == [(1, 0), (1, 1)]
    assert desk.store.peek(KEY).grants == ()


@pytest.mark.parametrize("policy", ["fail", "skip"], indirect=True)
def test_a_retry_that_does_not_come_keeps_the_key_for_a_minute_after_it_is_due(
    desk: Desk, clock: ManualClock, make: Callable[..., LockedTask]
) -> None:
    charge = make(countdown=30)
    charge.delay("42", 1)
    desk.deliver()
    desk.receive()

    desk.passes(89)
    charge.delay("42", 2)
    desk.deliver()
    assert desk.ran == [(1, 0)]

    desk.passes(2)
    charge.delay("42", 3)
    desk.deliver()
    assert desk.ran == [(1, 0), (3, 0)]


@pytest.mark.parametrize(("policy", "kept"), [("fail", 0), ("skip", 1)])
def test_a_retry_that_another_key_refuses_leaves_the_reserved_one_if_it_ends(
    desk: Desk, policy: str, kept: int
) -> None:
    options = RESERVES | {"on_contention": policy}

    @desk.locked(["order:{order}", Shared("customer:7")], name="charge", bind=True, **options)
    def charge(self: LockedTask, order: str) -> None:
        raise self.retry(countdown=30)

    charge.delay("42")
    desk.deliver()
    assert len(desk.store.peek(KEY).grants) == 1
    with lock("customer:7", app=desk.app):
        desk.deliver()

    assert (len(desk.store.peek(KEY).grants), desk.size()) == (kept, kept)


@pytest.mark.parametrize("policy", ["queue", SOON], ids=repr)
def test_the_reserved_key_is_kept_while_the_retry_waits_for_another(
    desk: Desk, policy: Any
) -> None:
    options = RESERVES | {"on_contention": policy}

    @desk.locked(["order:{order}", Shared("customer:7")], name="charge", bind=True, **options)
    def charge(self: LockedTask, order: str, number: int) -> None:
        desk.ran.append(number)
        if number == 1 and not self.request.retries:
            raise self.retry(countdown=30)

    charge.delay("42", 1)
    desk.deliver()
    with lock("customer:7", app=desk.app):
        desk.deliver()  # the retry
        charge.delay("42", 2)
        desk.deliver()
    desk.deliver_all()

    assert desk.ran == [1, 1, 2]


@pytest.mark.parametrize("stays", [["shop:1"], []])
def test_only_the_keys_are_kept_that_the_retry_has_too(desk: Desk, stays: list[str]) -> None:
    @desk.locked(["order:{order}", "shop:{shop}"], bind=True, **RESERVES)
    def charge(self: LockedTask, order: int, shop: int) -> None:
        if not self.request.retries:
            raise self.retry(args=(order + 1,), kwargs={"shop": shop + (not stays)}, countdown=30)

    charge.delay(1, shop=1)
    desk.deliver()

    backend = desk.store
    kept = [key for key in ("order:1", "order:2", "shop:1", "shop:2") if backend.peek(key).grants]
    assert kept == stays


@pytest.mark.parametrize("policy", EVERY_POLICY, indirect=True, ids=repr)
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


@pytest.mark.parametrize("policy", [SOON, "queue"], indirect=True, ids=repr)
def test_a_revoked_retry_gives_the_key_back(desk: Desk, retry: LockedRequest) -> None:
    revoke(desk, retry.id)

    desk.deliver()
    assert desk.ran == [(1, 0), (2, 0)]
    assert desk.store.peek(KEY).grants == ()


@pytest.mark.parametrize("policy", [SOON, "queue"], indirect=True, ids=repr)
@pytest.mark.parametrize("expired", [False, True])
def test_a_discarded_retry_frees_the_key(desk: Desk, retry: LockedRequest, expired: bool) -> None:
    retry._announce_revoked("discarded", False, None, expired)

    desk.deliver()
    assert desk.ran == [(1, 0), (2, 0)]


@pytest.mark.parametrize("reported", [True, False])
def test_a_task_revoked_while_it_runs_reserves_nothing(desk: Desk, reported: bool) -> None:
    # Given a task that is revoked as its body runs, And whose retry Celery may not report
    @desk.locked("order:{order}", name="charge", bind=True, **RESERVES)
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
