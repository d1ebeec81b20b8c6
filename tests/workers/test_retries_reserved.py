"""``reserve_retries=True``: between a task and its retry nobody else of the key has a turn."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_dlock import LockedTask, Queue
from celery_dlock.core.state import KeyState
from celery_dlock.tasks.leaving import RETRY_GRACE
from celery_dlock.tasks.runtime import runtime
from celery_dlock.testing import ManualClock
from tests.services.desk import Desk

pytestmark = pytest.mark.every_store

KEY = "order:42"
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
    desk.deliver()  # the second is called

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

    def sweep() -> None:
        runtime(desk.app).wake(runtime(desk.app).backend.sweep().wakes)

    clock.advance(30 + RETRY_GRACE - 1)
    sweep()
    assert desk.size() == 0
    clock.advance(2)
    sweep()

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
