"""A message that is too large for the store waits in the broker instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_dlock import LockedTask, Queue, lock
from celery_dlock.core.events import Parked, Rescheduled, TooLarge
from celery_dlock.runtime import runtime
from tests.services.desk import Desk

KEY = "order:42"
LARGEST = 4000


@pytest.fixture
def make(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LockedTask]:
    monkeypatch.setattr(type(runtime(desk.app).backend), "largest_message", LARGEST)

    def make(**options: Any) -> LockedTask:
        @desk.locked("order:{order}", name="charge", on_contention=Queue(**options))
        def charge(order: str, text: str) -> int:
            return len(text)

        return charge

    return make


def test_it_is_rescheduled_and_told(desk: Desk, make: Callable[..., LockedTask]) -> None:
    # Given a large message and a small one, And the key is taken
    charge = make()
    large, small = charge.delay("42", "x" * LARGEST), charge.delay("42", "x")
    with lock(KEY, app=desk.app, timeout=0):
        desk.deliver()
        desk.deliver()

        # Then the small one waits in the store and the large one in the broker
        assert [event.subject.task_id for event in desk.happened(Parked)] == [small.id]
        assert [event.subject.task_id for event in desk.happened(Rescheduled)] == [large.id]
        (told,) = desk.happened(TooLarge)
        assert (told.subject.task_id, told.size > LARGEST) == (large.id, True)
        assert runtime(desk.app).backend.peek(KEY).parked == 1

    # And both run
    desk.deliver_all()
    assert (large.get(), small.get()) == (LARGEST, 1)


def test_it_runs_at_once_where_the_key_is_free(desk: Desk, make: Callable[..., LockedTask]) -> None:
    large = make(keep=True).delay("42", "x" * LARGEST)

    desk.deliver()

    assert large.get() == LARGEST
    assert desk.size() == 0


def test_it_is_published_as_usual_where_the_order_is_that_of_publishing(
    desk: Desk, make: Callable[..., LockedTask]
) -> None:
    charge = make(ordered="publish")
    with lock(KEY, app=desk.app, timeout=0):
        large, small = charge.delay("42", "x" * LARGEST), charge.delay("42", "x")

        assert desk.size() == 1
        assert [event.subject.task_id for event in desk.happened(TooLarge)] == [large.id]
        assert runtime(desk.app).backend.peek(KEY).parked == 1

    desk.deliver_all()
    assert (large.get(), small.get()) == (LARGEST, 1)
