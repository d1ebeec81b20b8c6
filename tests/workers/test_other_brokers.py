"""Messages that belong to another broker than that of the process which calls them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from celery import Celery

from celery_dlock import LockedTask, LockTimeout, Queue
from celery_dlock.core.events import DeadLettered, Event, LeftToOthers
from celery_dlock.core.lease import SECOND
from celery_dlock.core.sinks import Sinks
from celery_dlock.core.state import Cause, Claim, Outcome, Run
from celery_dlock.messages.waking import Waker
from celery_dlock.ops.dead_letters import replay
from celery_dlock.runtime import runtime
from celery_dlock.testing import ManualClock
from tests.services.desk import Desk

pytestmark = pytest.mark.stores

KEY = "order:42"
ELSEWHERE = "redis://elsewhere:6379/0"
MAX_WAIT = 60.0


@pytest.fixture
def charge(desk: Desk) -> LockedTask:
    @desk.locked(
        "order:{order}", name="charge", on_contention=Queue(max_wait=MAX_WAIT), max_retries=0
    )
    def charge(order: str, number: int = 0) -> int:
        return number

    return charge


class Others:
    """A process of another application, at another broker, with the same store."""

    def __init__(self, desk: Desk, clock: ManualClock) -> None:
        self.events: list[Event] = []
        self.store: Any = desk.store
        self.wake = Waker(
            Celery("others", set_as_current=False),
            self.store,
            Sinks([self.events.append]),
            ELSEWHERE,
        )
        self._clock = clock

    def sweep(self) -> None:
        self._clock.advance(5)
        self.wake(self.store.sweep().wakes)


@pytest.fixture
def others(desk: Desk, clock: ManualClock) -> Others:
    return Others(desk, clock)


@pytest.fixture
def held(desk: Desk, charge: LockedTask, others: Others) -> Claim:
    """Somebody has the key."""
    mine = Claim(KEY, "holder:0:0", "1", ttl=3600 * SECOND)
    assert isinstance(others.store.enter(mine).verdict, Run)
    return mine


def test_it_is_told_of_each_message_once_and_of_their_broker_once(
    desk: Desk, charge: LockedTask, others: Others, held: Claim, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = charge.delay("42"), charge.delay("42")
    desk.deliver_all()
    (wake,) = others.store.leave(held, Outcome.OVER).wakes
    for _ in range(3):
        others.wake([wake, replace(wake, task=f"{second.id}:0:0")])

    told = [event for event in others.events if isinstance(event, LeftToOthers)]
    assert [(event.subject.task_id, event.key) for event in told] == [
        (first.id, KEY),
        (second.id, KEY),
    ]
    assert {event.broker for event in told} == {runtime(desk.app).wake.broker}
    assert caplog.text.count("belongs to the broker") == 1
    assert "dlock_broker" in caplog.text
    assert desk.size() == 0


def test_one_that_waits_too_long_is_put_aside_where_no_worker_of_its_own_ends_it(
    desk: Desk, charge: LockedTask, others: Others, held: Claim
) -> None:
    # Given a task that waits for longer than it may, And no worker at its broker
    task = charge.delay("42", 7)
    desk.deliver()

    # When workers of another broker are called to end it, Then they do not publish it, And it dies
    for _ in range(300):
        others.sweep()
        if others.store.dead():
            break
    (letter,) = others.store.dead()
    assert letter.dead.cause is Cause.OTHER_BROKER
    assert [event.cause for event in others.events if isinstance(event, DeadLettered)] == [
        Cause.OTHER_BROKER
    ]
    assert desk.size() == 0
    # and nothing is left of it for the key
    others.store.leave(held, Outcome.OVER)
    assert others.store.peek(KEY).grants == ()

    # When its own application replays it, Then it runs
    assert replay(desk.app, KEY, letter.dead.task).carry_out("somebody")
    desk.deliver()
    assert task.get() == 7


def test_its_own_workers_end_it_although_others_are_woken_too(
    desk: Desk, charge: LockedTask, others: Others, held: Claim, clock: ManualClock
) -> None:
    task = charge.delay("42")
    desk.deliver()
    for _ in range(20):
        others.sweep()
    assert desk.size() == 0
    clock.advance(5)
    runtime(desk.app).wake(others.store.sweep().wakes)

    desk.deliver()

    assert isinstance(task.result, LockTimeout)
    assert others.store.dead() == []
