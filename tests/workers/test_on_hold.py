"""A key that a person keeps closed: what becomes of its tasks, by each policy, and what is said."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from kombu.message import Message

from celery_dlock import (
    FullJitter,
    LockContended,
    LockTimeout,
    Queue,
    Reschedule,
    Shared,
    Wait,
    lock,
    operate,
)
from celery_dlock.core.events import Contended, Parked, Rescheduled, Skipped, TimedOut
from celery_dlock.testing import ManualClock
from tests.services.desk import Desk
from tests.workers.conftest import refused

pytestmark = [pytest.mark.stores, pytest.mark.usefixtures("clock")]

KEY, WHY = "order:42", "the provider books twice"
HOUR = 3600.0
WHO = f"ann: {WHY}"
CLOSED = f"{KEY!r} is on hold for another {HOUR:.1f} s, by {WHO}"


@pytest.fixture(autouse=True)
def _store(desk: Desk) -> None:
    desk.sweep()  # as each worker does when it starts: there is a store, be it an empty one


def put_on_hold(desk: Desk, key: str = KEY, seconds: float = HOUR) -> None:
    assert operate.hold(key, seconds, because=WHY, by="ann", app=desk.app)


def end_hold(desk: Desk, key: str = KEY) -> None:
    stands = operate.on_hold(key, app=desk.app)
    assert stands is not None
    assert operate.end_hold(key, stands, app=desk.app)


def charge(desk: Desk, policy: Any, **options: Any) -> Any:
    given = {"name": "charge", "on_contention": policy, **options}

    @desk.locked("order:{order}", **given)
    def charge(order: int) -> int:
        return order

    return charge


def test_who_queues_waits_until_it_ends(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "celery_dlock")
    put_on_hold(desk)
    sent = charge(desk, "queue").delay(42)
    desk.deliver_all()
    desk.passes(HOUR - 1)
    assert desk.deliver_all() == 0

    desk.passes(1)
    desk.deliver_all()

    assert desk.result(sent.id).result == 42
    waits = f"was refused and parked at {KEY!r}, which was on hold, by {WHO}"
    assert f"Task charge[{sent.id}] {waits}" in caplog.text
    (event,) = desk.happened(Parked)
    assert (event.holder, event.by, event.hold) == (None, "", WHO)


def test_one_that_is_skipped_or_fails_says_who_and_why(desk: Desk) -> None:
    put_on_hold(desk)
    skipped = charge(desk, "skip").delay(42)
    fails = charge(desk, "fail", name="fails")
    desk.deliver_all()

    assert desk.result(skipped.id).result == {
        "skipped": True,
        "key": KEY,
        "holder": None,
        "since": None,
        "reason": CLOSED,
    }
    assert [event.reason for event in desk.happened(Skipped)] == [CLOSED]
    assert [event.hold for event in desk.happened(Contended)] == [WHO]
    with pytest.raises(LockContended) as error:
        fails(42)
    assert (error.value.why, error.value.hold, error.value.holder) == (CLOSED, WHO, None)


def test_one_that_waits_in_its_slot_gives_up(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "celery_dlock")
    put_on_hold(desk)
    desk.clock.advance(600)
    sent = charge(desk, Wait(timeout=1.0)).delay(42)

    desk.deliver_all()

    error = desk.result(sent.id).result
    assert isinstance(error, LockTimeout)
    assert error.hold == WHO
    assert f"s at most, which is on hold, by {WHO}" in caplog.text


def test_code_outside_tasks_is_told_too(desk: Desk) -> None:
    put_on_hold(desk)

    with pytest.raises(LockContended, match=f"by {WHO}"), lock(KEY, app=desk.app, timeout=0):
        pass
    with pytest.raises(LockTimeout, match=f"by {WHO}"), lock(KEY, app=desk.app, timeout=0.01):
        pass


def test_one_that_comes_back_does_so_when_it_ends_or_to_look(desk: Desk) -> None:
    comes_back = charge(desk, Reschedule(backoff=FullJitter(base=1, cap=1)))
    for seconds, least in ((HOUR, 300.0), (60.0, 60.0)):
        put_on_hold(desk, seconds=seconds)
        comes_back.delay(42)
        desk.deliver()
        event = desk.happened(Rescheduled)[-1]
        assert least <= event.countdown <= least + 1
        assert f"is on hold for another {seconds:.1f} s, by {WHO}" in event.reason
        end_hold(desk)
        desk.deliver_all()


def later(clock: ManualClock, message: Message, seconds: float) -> Message:
    """*message* as it would be, were it delivered so much later."""
    clock.advance(seconds)
    past = message.headers["dlock"]
    for instant in ("since", "expected", "held"):
        if past.get(instant):
            past[instant] -= seconds
    return message


@pytest.mark.parametrize("before", [0, 20])
def test_who_comes_back_has_not_waited_while_it_was_on_hold(desk: Desk, before: int) -> None:
    policy = Reschedule(backoff=FullJitter(base=1, cap=1), max_wait=600)
    sent = charge(desk, policy).delay(42)
    if before:  # it has waited for so long, for another task
        _, again = refused(desk)
        desk.clock.advance(before)
    else:
        again = desk.receive()
    put_on_hold(desk, seconds=24 * HOUR)
    for number in range(12):
        first = number == 0
        step = 20.0 if first and before else 302.0
        desk.run(again if first and not before else later(desk.clock, again, step))
        again = desk.receive()
    end_hold(desk)
    later(desk.clock, again, 302)
    steps = 0
    message: Message | None = again
    while message is not None:
        with lock(KEY, app=desk.app, timeout=0):
            desk.run(later(desk.clock, message, 25))
        message, steps = desk.take(), steps + 1

    with pytest.raises(LockTimeout):
        sent.get()
    assert desk.happened(TimedOut)
    assert steps == pytest.approx((600 - before) / 25, abs=2)


def test_who_waits_at_another_of_its_keys_loses_patience(desk: Desk) -> None:
    @desk.locked(["a:{order}", "all"], on_contention=Queue(max_wait=60))
    def charge(order: int) -> None: ...

    put_on_hold(desk, "all")
    with lock("a:42", app=desk.app, ttl=HOUR, timeout=0):
        sent = charge.delay(42)
        desk.deliver_all()
        desk.passes(60)
        desk.deliver_all()

    assert isinstance(desk.result(sent.id).result, LockTimeout)


def test_a_parent_on_hold_closes_what_is_below_it(desk: Desk) -> None:
    put_on_hold(desk, "orders")
    child = lock([KEY, Shared("orders")], app=desk.app, timeout=0)

    with pytest.raises(LockContended, match="'orders' is on hold"), child:
        pass

    with lock(KEY, app=desk.app, timeout=0):
        pass


def test_who_runs_goes_on_and_its_retry_waits(desk: Desk) -> None:
    @desk.locked("order:{order}", bind=True, on_contention="queue", max_retries=1)
    def charge(self: Any, order: int) -> int:
        if not self.request.retries:
            put_on_hold(desk)
            self.lease.check()
            raise self.retry(countdown=0)
        return order

    sent = charge.delay(42)
    desk.deliver_all()
    assert len(operate.waiting(KEY, app=desk.app)) == 1

    end_hold(desk)
    desk.deliver_all()

    assert desk.result(sent.id).result == 42
