"""Time in which no worker was there is not waited: ``max_wait`` fails nobody at a restart."""

from __future__ import annotations

import time

import pytest
from celery.states import RETRY
from kombu.message import Message

from celery_dlock import LockedTask, LockTimeout, Reschedule, lock
from celery_dlock.core.events import TimedOut
from celery_dlock.core.turns import UNATTENDED
from celery_dlock.runtime import runtime
from tests.services.desk import Desk
from tests.services.until import until
from tests.workers.conftest import MakeLab, charging, refused

HOUR = 3600.0
GRACE = UNATTENDED / 1_000_000


def later(message: Message, seconds: float) -> Message:
    """*message* as it would be, were it delivered so much later."""
    past = message.headers["dlock"]
    for instant in ("since", "expected"):
        if past.get(instant) is not None:
            past[instant] -= seconds
    return message


def charge_within_ten_minutes(desk: Desk) -> LockedTask:
    return charging(desk, on_contention=Reschedule(max_wait=600))


def refused_again(desk: Desk, message: Message) -> Message | None:
    """Run *message* while the key is held; what is published for it, if it has not failed."""
    with lock("order:42", app=desk.app, timeout=0):
        desk.run(message)
    return desk.take()


def test_what_lay_in_the_broker_without_a_worker_has_not_waited_meanwhile(desk: Desk) -> None:
    charge = charge_within_ten_minutes(desk)
    result = charge.delay(order="42")
    again: Message | None
    _, again = refused(desk)

    for _ in range(3):  # nights
        assert again is not None, "it has failed"
        again = refused_again(desk, later(again, 10 * HOUR))

    assert desk.happened(TimedOut) == []
    assert again is not None
    desk.run(later(again, 10 * HOUR))
    assert result.get() == "42"


def test_what_was_taken_as_soon_as_it_was_due_has_waited_for_all_the_time(desk: Desk) -> None:
    charge = charge_within_ten_minutes(desk)
    result = charge.delay(order="42")
    again: Message | None
    _, again = refused(desk)
    steps = 0
    while again is not None:
        steps += 1
        again = refused_again(desk, later(again, GRACE - 5))

    with pytest.raises(LockTimeout):
        result.get()
    assert steps == pytest.approx(600 / (GRACE - 5), abs=1)


def test_what_was_late_before_it_was_refused_is_patient_from_its_refusal_on(desk: Desk) -> None:
    charge = charge_within_ten_minutes(desk)
    charge.delay(order="42")
    again: Message | None
    _, again = refused(desk)
    assert again is not None
    again.headers["dlock"] |= {"since": None, "expected": time.time() - HOUR}
    again = refused_again(desk, again)
    assert again is not None
    again.headers["dlock"]["since"] -= 601

    assert refused_again(desk, again) is None

    assert len(desk.happened(TimedOut)) == 1


def test_what_was_parked_has_waited_whenever_it_was_expected_before(desk: Desk) -> None:
    charge = charge_within_ten_minutes(desk)
    charge.delay(order="42")
    again: Message | None
    _, again = refused(desk)
    assert again is not None
    again.headers["dlock"] |= {"called": time.time(), "key": "order:42"}

    assert refused_again(desk, later(again, HOUR)) is None

    assert len(desk.happened(TimedOut)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["reschedule for a while", "queue for a while"])
def test_nobody_fails_at_the_restart_after_longer_than_they_would_wait(
    make_lab: MakeLab, policy: str
) -> None:
    # Given ten tasks that wait for an order, and no workers for longer than that
    lab = make_lab(lock={"policy": policy, "ttl": 2.0}, unattended=2_000_000)
    apply = lab.app.tasks["apply"]
    with lock("order:42", app=lab.app), lab.worker(concurrency=2) as worker:
        sent = [apply.delay("42", number) for number in range(10)]
        backend = runtime(lab.app).backend
        until(
            "all were refused",
            lambda: (
                all(result.state == RETRY for result in sent)
                or backend.peek("order:42").parked == len(sent)
            ),
        )
        worker.stop()
    gone = time.monotonic()
    until("they have waited for too long", lambda: time.monotonic() > gone + 18)
    assert not any(result.ready() for result in sent)

    # When the workers are back
    with lab.worker(concurrency=2):
        found = sorted(result.get(timeout=60) for result in sent)

    assert found == list(range(10))
