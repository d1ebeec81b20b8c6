"""A task is woken from its queue, and ends before it asks for its lock: its turn is the next's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery.exceptions import Ignore, Reject

from celery_dlock import LockedTask, Queue, lock
from celery_dlock.runtime import runtime
from tests.services.desk import Desk

KEY = "order:42"

Raises = Callable[[Any], Exception | None]


class Preparing(LockedTask):
    """A project's base class that does something before each task."""

    abstract = True
    raises: Raises | None = None

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        if self.raises is not None and list(args) == ["42", 1]:
            error = self.raises(self)
            if error is not None:
                raise error


@pytest.fixture
def ran() -> list[int]:
    return []


@pytest.fixture
def charge(desk: Desk, ran: list[int]) -> LockedTask:
    options = {"lock_key": "order:{order}", "lock_on_contention": Queue()}

    @desk.app.task(base=Preparing, name="charge", **options)
    def charge(order: str, number: int) -> None:
        ran.append(number)

    task: LockedTask = charge
    return task


def two_that_wait(desk: Desk, charge: LockedTask) -> Any:
    """The result of the first of them, which has been woken."""
    with lock(KEY, app=desk.app, timeout=0):
        first = charge.delay("42", 1)
        charge.delay("42", 2)
        desk.deliver_all()
    return first


def state_of(desk: Desk) -> Any:
    return runtime(desk.app).backend.peek(KEY)


@pytest.mark.parametrize(
    ("raises", "state"),
    [(lambda _: ValueError("no connection"), "FAILURE"), (lambda _: Ignore(), "PENDING")],
    ids=["fails", "ignores"],
)
def test_what_ends_in_before_start_leaves_its_turn_to_the_next(
    desk: Desk, charge: LockedTask, ran: list[int], raises: Raises, state: str
) -> None:
    first = two_that_wait(desk, charge)
    charge.raises = raises
    assert desk.deliver_all() == 2
    assert first.state == state
    assert ran == [2]
    assert not state_of(desk).grants


def test_what_retries_in_before_start_runs_once(
    desk: Desk, charge: LockedTask, ran: list[int]
) -> None:
    two_that_wait(desk, charge)
    charge.raises = lambda task: None if task.request.retries else task.retry(countdown=0)
    desk.deliver_all()
    assert sorted(ran) == [1, 2]
    assert not state_of(desk).grants


def test_arguments_that_give_no_key_any_more_leave_the_turn_to_the_next(
    desk: Desk, charge: LockedTask, ran: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = two_that_wait(desk, charge)
    old = type(charge.lock_definition).keys

    def of_a_new_version(definition: Any, args: Any, kwargs: Any) -> Any:
        if list(args) == ["42", 1]:
            raise KeyError("customer")
        return old(definition, args, kwargs)

    monkeypatch.setattr(type(charge.lock_definition), "keys", of_a_new_version)
    assert desk.deliver_all() == 2
    assert first.state == "FAILURE"
    assert ran == [2]
    assert not state_of(desk).grants


def test_what_is_rejected_in_before_start_to_come_again_keeps_its_turn(
    desk: Desk, charge: LockedTask, ran: list[int]
) -> None:
    # Given one that was acknowledged early: its only message is the store's
    first = two_that_wait(desk, charge)
    charge.raises = lambda _: Reject(requeue=True)
    assert desk.deliver_all() == 1
    assert [grant.task for grant in state_of(desk).grants] == [f"{first.id}:0:0"]
    assert ran == []


def test_a_task_that_has_no_lock_any_more_is_not_woken_again(
    desk: Desk, charge: LockedTask, ran: list[int]
) -> None:
    # Given a new version of it without a lock, while it waits
    first = two_that_wait(desk, charge)
    del desk.app.tasks["charge"]

    @desk.app.task(name="charge")
    def unlocked(order: str, number: int) -> None:
        if f"{first.id}:0:0" not in {grant.task for grant in state_of(desk).grants}:
            ran.append(number)

    # Then nothing calls it while it runs, or after that
    assert desk.deliver_all() == 2
    assert ran == [1, 2]
    assert not state_of(desk).grants
