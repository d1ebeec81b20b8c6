"""A worker is killed, or a message is lost, around a queue: nobody is forgotten, nobody pays twice.

The queue is the order 42's: one task runs, another waits behind it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from celery.result import AsyncResult

from celery_dlock.core.state import KeyState
from celery_dlock.runtime import runtime
from tests.faults.conftest import MakeLab, all_have_left
from tests.services import faults
from tests.services.effects import Effects
from tests.services.lab import Lab
from tests.services.redelivery import deliver_again
from tests.services.turns import freed
from tests.services.until import until

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]

ENTER = "celery_dlock.locks.manager:LockManager.acquire"
#: Asks without the message, and with it where the task has to wait.
ANSWER = "celery_dlock.delivery.taking:_answer"
WAKE = "celery_dlock.messages.waking:Waker.__call__"
LEAVE = "celery_dlock.stores.redis.store:RedisBackend.leave"
SWEEP = "celery_dlock.stores.redis.store:RedisBackend.sweep"
ACKNOWLEDGE = "celery.worker.request:Request.acknowledge"

KEY = "order:42"

Two = tuple[AsyncResult, AsyncResult]


def queue_of(lab: Lab) -> KeyState:
    return runtime(lab.app).backend.peek(KEY)


def one_runs_and_one_waits(lab: Lab) -> Two:
    """The first holds on until the test says go; the second is parked."""
    pay = lab.app.tasks["pay"]
    first = pay.delay("42", 1, hold="first")
    lab.journal.wait_for("start", id=first.id)
    second = pay.delay("42", 2)
    until("the second waits", lambda: queue_of(lab).parked == 1)
    return first, second


def all_went_well(lab: Lab, effects: Effects, sent: Two) -> None:
    assert [result.get(timeout=30) for result in sent] == [1, 2]
    assert [payment[0] for payment in effects.payments()] == [result.id for result in sent]
    # Which comes after the result, for a copy that was delivered again has its turn too
    freed(lab, "42")


@pytest.mark.parametrize(
    ("when", "where"),
    [
        pytest.param("before", LEAVE, id="before the leave"),
        pytest.param("after", LEAVE, id="between the leave and the wake"),
        pytest.param("before", WAKE, id="before the wake is published"),
        pytest.param("after", WAKE, id="between the wake and the acknowledgement"),
    ],
)
def test_the_one_that_leaves_is_killed(
    make_lab: MakeLab, effects: Effects, when: str, where: str
) -> None:
    lab = make_lab(lock={"policy": "queue"}, faults=[faults.kill(when, where)], sweeps=False)
    with lab.worker("prefork", concurrency=2) as worker:
        sent = one_runs_and_one_waits(lab)
        lab.go("first")
        worker.ended()
        assert faults.struck(lab.folder)
    deliver_again(lab.app)
    with lab.worker("prefork", concurrency=2, sweeps=True):
        all_went_well(lab, effects, sent)


@pytest.mark.parametrize(
    ("when", "where", "waits"),
    [
        pytest.param("after", ENTER, 0, id="before it is parked"),
        pytest.param("after", ANSWER, 1, id="between parking and the acknowledgement"),
        pytest.param("before", ACKNOWLEDGE, 1, id="as it is acknowledged"),
    ],
)
def test_the_worker_that_parks_is_killed(
    make_lab: MakeLab, effects: Effects, when: str, where: str, waits: int
) -> None:
    lab = make_lab(lock={"policy": "queue", "ttl": 30.0})
    with lab.worker("prefork", concurrency=1) as holder:
        # Given one worker that holds the key and does not take a second message
        pay = lab.app.tasks["pay"]
        first = pay.delay("42", 1, hold="first")
        lab.journal.wait_for("start", id=first.id)
        # When another one dies with the message that has to wait
        with lab.worker("prefork", concurrency=1, faults=[faults.kill(when, where)]) as parker:
            second = pay.delay("42", 2)
            parker.ended()
        assert queue_of(lab).parked == waits
        # Then it is delivered again, as is the one that runs, And each stands in the queue once
        deliver_again(lab.app)
        with lab.worker("prefork", concurrency=2):
            until("both wait", lambda: queue_of(lab).parked == 2)
            lab.go("first")
            all_went_well(lab, effects, (first, second))
        assert holder.process is not None
    assert len(lab.journal.read("start")) == 2


@pytest.mark.parametrize(
    ("when", "where", "waits"),
    [
        pytest.param("before", "celery_dlock.worker.parking:Parking._park", 1, id="before"),
        pytest.param(
            "after", "celery_dlock.worker.parking:Parking._park", 5, id="not acknowledged"
        ),
        pytest.param(
            "after", "celery_dlock.worker.parking:HeldBack.acknowledge", 5, id="one acknowledged"
        ),
    ],
)
def test_the_worker_that_parks_without_a_slot_is_killed(
    make_lab: MakeLab, effects: Effects, when: str, where: str, waits: int
) -> None:
    lab = make_lab(lock={"policy": "queue", "ttl": 30.0})
    pay = lab.app.tasks["pay"]
    with lab.worker("prefork", concurrency=1) as holder:
        # Given one worker that holds the key and does not take a second message
        sent = [pay.delay("42", 1, hold="first")]
        lab.journal.wait_for("start", id=sent[0].id)
        # When another one, that knows the key to be waited for, dies with messages for it
        with lab.worker("prefork", concurrency=1, faults=[faults.kill(when, where)]) as parker:
            sent.append(pay.delay("42", 2))
            until("one waits", lambda: queue_of(lab).parked == 1)
            sent += [pay.delay("42", number) for number in range(3, 7)]
            parker.ended()
        assert waits - 3 <= queue_of(lab).parked <= waits
        # Then they are delivered again, as is the one that runs, And each stands in the queue once
        deliver_again(lab.app)
        with lab.worker("prefork", concurrency=2):
            until("all wait", lambda: queue_of(lab).parked == 6)
            lab.go("first")
            assert [result.get(timeout=30) for result in sent] == list(range(1, 7))
            freed(lab, "42")
        assert {payment[0] for payment in effects.payments()} == {result.id for result in sent}
        assert len(effects.payments()) == 6
        assert holder.process is not None
    assert len(lab.journal.read("start")) == 6


def test_the_woken_message_is_lost_in_the_broker(make_lab: MakeLab, effects: Effects) -> None:
    # Given a worker that publishes a woken message, And is gone before it takes it
    lab = make_lab(lock={"policy": "queue"}, faults=[faults.kill("after", WAKE)], sweeps=False)
    with lab.worker("prefork", concurrency=2) as worker:
        sent = one_runs_and_one_waits(lab)
        lab.go("first")
        worker.ended()
    # When the broker loses it, with all it has
    deliver_again(lab.app)
    lab.app.control.purge()
    # Then the sweeper of any worker calls again; the first had done all but acknowledge
    with lab.worker("prefork", concurrency=2, sweeps=True):
        all_went_well(lab, effects, sent)


def test_the_sweeper_is_killed_before_it_publishes(make_lab: MakeLab, effects: Effects) -> None:
    # Given a worker that dies in its body
    lab = make_lab(lock={"policy": "queue"})
    with lab.worker("prefork", concurrency=2, sweeps=False) as worker:
        sent = one_runs_and_one_waits(lab)
        worker.kill()
    # When the next one, whose sweeper finds the lease ended, dies at that
    swept = faults.kill("after", SWEEP)
    until("the lease has ended", _lapsed(lab))
    with lab.worker("prefork", concurrency=2, faults=[swept], ready=False) as worker:
        worker.ended()
    # Then a third one calls again
    lab.go("first")
    with lab.worker("prefork", concurrency=2) as worker:
        deliver_again(lab.app)
        assert [result.get(timeout=60) for result in sent] == [1, 2]
    assert sorted(payment[0] for payment in effects.payments()) == sorted(r.id for r in sent)


def test_a_copy_carries_on_when_the_first_delivery_dies(
    make_lab: MakeLab, effects: Effects
) -> None:
    # Given a task that runs, And its message is delivered again meanwhile, to another worker
    lab = make_lab(lock={"policy": "queue"})
    with lab.worker("prefork", concurrency=1) as first_worker:
        first = lab.app.tasks["pay"].delay("42", 1, hold="first")
        lab.journal.wait_for("start", id=first.id)
        with lab.worker("prefork", concurrency=1):
            deliver_again(lab.app)
            until("the copy waits in the store", lambda: queue_of(lab).parked == 1)
            # When the first worker dies, with the only delivery the broker knows
            first_worker.kill()
            lab.go("first")
            # Then the copy runs once the lease has ended
            assert first.get(timeout=60) == 1
            all_have_left(lab, "42")
    assert len(effects.payments()) == 1


def test_a_store_that_forgets_everything_loses_who_waits_and_lets_nobody_pay_twice(
    make_lab: MakeLab, effects: Effects
) -> None:
    # Given one that runs and one that waits in the store
    lab = make_lab(lock={"policy": "queue", "ttl": 2.0})
    with lab.worker("prefork", concurrency=2):
        first, second = one_runs_and_one_waits(lab)
        # When the store loses its data, And a third task takes the key
        runtime(lab.app).backend._session().client.flushdb()  # type: ignore[attr-defined]
        third = lab.app.tasks["pay"].delay("42", 3)
        assert third.get(timeout=60) == 3
        lab.go("first")
        first.get(timeout=60, propagate=False)
        # Then the one that waited is lost, as the page of the store says; no effect is doubled
        assert second.state == "PENDING"
    paid = [payment[0] for payment in effects.payments()]
    assert len(paid) == len(set(paid))
    assert third.id in paid


def _lapsed(lab: Lab) -> Callable[[], bool]:
    store = runtime(lab.app).backend

    def lapsed() -> bool:
        seconds, micros = store._session().client.time()  # type: ignore[attr-defined]
        now = seconds * 1_000_000 + micros
        return all(holder.expires <= now for holder in queue_of(lab).holders)

    return lapsed
