"""A ``retry()`` that cannot be published: when it comes back, and with what."""

# mypy: allow-untyped-calls

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from kombu.exceptions import EncodeError, OperationalError
from kombu.messaging import Producer

from celery_dlock import LockedTask
from celery_dlock.core.backoff import FullJitter
from celery_dlock.core.events import TooLarge
from celery_dlock.delivery import outgoing
from celery_dlock.runtime import runtime
from celery_dlock.testing import ManualClock
from tests.services.desk import Desk
from tests.services.trouble import Trouble
from tests.workers.conftest import nothing_is_left

KEY = "order:42"


@pytest.fixture
def trouble(desk: Desk, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Trouble:
    monkeypatch.setattr(outgoing, "ROUND", 0.0)
    monkeypatch.setattr(outgoing, "_STAYING", FullJitter(base=0.001, cap=0.001))
    desk.app.conf.task_publish_retry_policy = {"max_retries": 1, "interval_max": 0.0}
    trouble = Trouble(monkeypatch)
    trouble.beset(runtime(desk.app).backend)
    return trouble


@pytest.fixture
def ran() -> list[Any]:
    return []


def make(desk: Desk, trouble: Trouble, ran: list[Any], **how: Any) -> LockedTask:
    """A task whose first attempt calls ``retry(**how)`` while the broker takes nothing."""

    @desk.locked("order:{order}", name="charge", bind=True)
    def charge(self: Any, order: str, what: Any = None) -> str:
        ran.append((order, what, self.request.retries))
        if not self.request.retries:
            trouble.error = OperationalError("away")
            raise self.retry(**{"countdown": 0, **how})
        return "done"

    return charge


def call(desk: Desk, trouble: Trouble, clock: ManualClock) -> None:
    """All is well again, and a worker sweeps."""
    trouble.over()
    clock.advance(10)
    runtime(desk.app).wake(runtime(desk.app).backend.sweep().wakes)


@pytest.mark.parametrize("eta", [False, True], ids=["countdown", "eta"])
def test_what_was_parked_runs_when_it_is_due_and_holds_up_nobody_until_then(
    desk: Desk,
    trouble: Trouble,
    clock: ManualClock,
    ran: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    eta: bool,
) -> None:
    # Given a retry for later that the store has to keep
    due = datetime.now(UTC) + timedelta(seconds=600)
    charge = make(desk, trouble, ran, **({"eta": due} if eta else {"countdown": 600}))
    result = charge.delay("42")
    desk.deliver()
    assert result.state == "RETRY"
    assert desk.size() == 0
    # When the broker is back and the retry is woken
    call(desk, trouble, clock)
    desk.deliver()
    # Then it waits in the broker for its time, And the key is free
    again = desk.take()
    assert again is not None
    assert abs(datetime.fromisoformat(again.headers["eta"]) - due) < timedelta(seconds=60)
    assert nothing_is_left(desk)
    assert len(ran) == 1
    # And when that has come, it runs
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 600)
    desk.run(again)
    assert result.get() == "done"
    assert ran == [("42", None, 0), ("42", None, 1)]
    assert nothing_is_left(desk)


def test_what_is_woken_too_early_while_the_broker_is_unavailable_stays_parked(
    desk: Desk, trouble: Trouble, clock: ManualClock, ran: list[Any]
) -> None:
    result = make(desk, trouble, ran, countdown=600).delay("42")
    desk.deliver()
    call(desk, trouble, clock)
    trouble.error = OperationalError("away")
    desk.deliver()
    assert desk.size() == 0

    clock.advance(3600)
    call(desk, trouble, clock)
    desk.deliver()

    again = desk.take()
    assert again is not None
    assert again.headers["id"] == result.id
    assert again.headers["eta"] is not None
    assert nothing_is_left(desk)


def test_it_comes_back_with_other_arguments(
    desk: Desk, trouble: Trouble, clock: ManualClock, ran: list[Any]
) -> None:
    charge = make(desk, trouble, ran, args=("43",), kwargs={"what": "other"})
    result = charge.delay("42", what="this")
    desk.deliver()
    call(desk, trouble, clock)
    desk.deliver_all()

    assert result.get() == "done"
    assert ran == [("42", "this", 0), ("43", "other", 1)]
    assert nothing_is_left(desk)
    assert nothing_is_left(desk, "order:43")


def test_arguments_that_nobody_can_write_fail_where_people_see_it(
    desk: Desk, trouble: Trouble, ran: list[Any]
) -> None:
    result = make(desk, trouble, ran, kwargs={"what": object()}).delay("42")
    trouble.tries = 0
    desk.deliver()

    assert result.state == "FAILURE"
    assert isinstance(result.result, EncodeError | TypeError)
    assert desk.size() == 0
    assert nothing_is_left(desk)


def test_a_message_that_is_too_large_for_the_store_stays_until_the_broker_takes_it(
    desk: Desk, trouble: Trouble, ran: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(runtime(desk.app).backend), "largest_message", 10)
    trouble.tries = 5
    result = make(desk, trouble, ran).delay("42")
    desk.deliver()

    assert desk.happened(TooLarge)
    assert result.state == "RETRY"
    desk.deliver_all()
    assert result.get() == "done"


@pytest.mark.parametrize("late", [False, True])
def test_one_that_is_at_fault_too_fails_where_people_see_it(
    desk: Desk, trouble: Trouble, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    monkeypatch.setattr(type(runtime(desk.app).backend), "largest_message", 10)

    @desk.locked("order:{order}", name="charge", bind=True, acks_late=late)
    def charge(self: Any, order: str) -> None:
        trouble.error = ValueError("a property is invalid")
        raise self.retry(countdown=0)

    result = charge.delay("42")
    assert desk.deliver().acknowledged

    assert result.state == "FAILURE"
    assert isinstance(result.result, ValueError)
    assert desk.size() == 0
    assert nothing_is_left(desk)


@pytest.mark.parametrize("late", [False, True])
def test_a_soft_time_limit_in_the_publish_reaches_the_body(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    def struck(*_: Any, **__: Any) -> None:
        raise SoftTimeLimitExceeded

    @desk.locked("order:{order}", name="charge", bind=True, acks_late=late)
    def charge(self: Any, order: str) -> str:
        try:
            with monkeypatch.context() as patch:
                patch.setattr(Producer, "publish", struck)
                raise self.retry(countdown=0)
        except SoftTimeLimitExceeded:
            return "cleaned up"

    result = charge.delay("42")
    assert desk.deliver().acknowledged

    assert result.get() == "cleaned up"
    assert desk.size() == 0
    assert nothing_is_left(desk)


def test_a_soft_time_limit_after_the_publish_ends_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    strikes = [SoftTimeLimitExceeded()]
    publish = Producer.publish

    def struck(*args: Any, **options: Any) -> None:
        publish(*args, **options)
        if len(published) == 1 and strikes:  # Celery's event about it
            raise strikes.pop()
        published.append(options)

    published: list[Any] = []
    desk.app.conf.task_send_sent_event = True

    @desk.locked("order:{order}", name="charge", bind=True)
    def charge(self: Any, order: str) -> str:
        if self.request.retries:
            return "done"
        monkeypatch.setattr(Producer, "publish", struck)
        raise self.retry(countdown=0)

    result = charge.delay("42")
    desk.deliver()
    assert not strikes
    assert result.state == "RETRY"
    desk.deliver_all()
    assert result.get() == "done"


def test_who_publishes_after_it_finds_a_pool_that_is_whole(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.app.conf.broker_pool_limit = 1
    closed: list[Any] = []

    @desk.locked("order:{order}", name="charge", bind=True)
    def charge(self: Any, order: str) -> str:
        if not self.request.retries:
            # Given a connection of the pool whose channel is closed, as after a broker's restart
            with desk.app.producer_or_acquire() as producer:
                channel = producer.channel
            monkeypatch.setattr(channel, "basic_publish", broken)
            raise self.retry(countdown=0)
        return "done"

    def broken(*_: Any, **__: Any) -> None:
        closed.append(1)
        raise AttributeError("'NoneType' object has no attribute 'client'")

    result = charge.delay("42")
    desk.deliver()
    assert closed == [1]
    for _ in range(3):
        charge.delay("43")
    assert closed == [1]
    desk.deliver_all()
    assert result.get() == "done"
