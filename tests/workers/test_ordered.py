"""``ordered="publish"``: the place is taken where the task is published, and kept from there."""

# mypy: allow-untyped-calls

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from celery.beat import Scheduler

from celery_dlock import BackendUnavailable, LockedTask, Queue
from celery_dlock.core.events import Parked, Rescheduled, Woken
from celery_dlock.core.state import KeyState
from celery_dlock.runtime import runtime
from tests.services.desk import Desk
from tests.workers.conftest import nothing_is_left

pytestmark = pytest.mark.stores

KEY = "order:42"

Ran = list[Any]
MakeOrdered = Callable[..., LockedTask]


@pytest.fixture
def charge(make_ordered: MakeOrdered) -> LockedTask:
    return make_ordered()


def peek(desk: Desk, key: str = KEY) -> KeyState:
    return runtime(desk.app).backend.peek(key)


def test_who_finds_the_key_free_is_woken_at_once(desk: Desk, charge: LockedTask) -> None:
    result = charge.delay("42", 7)

    assert [type(e) for e in desk.events] == [Parked, Woken]
    assert desk.size() == 1
    desk.deliver()
    assert result.get() == 7
    assert nothing_is_left(desk)


def test_only_the_head_is_at_the_broker(desk: Desk, charge: LockedTask, ran: Ran) -> None:
    for number in range(5):
        charge.delay("42", number)
        assert desk.size() == 1
    assert peek(desk).parked == 4

    for left in (3, 2, 1, 0):
        desk.deliver()
        assert (desk.size(), peek(desk).parked) == (1, left)
    desk.deliver()
    assert ran == [0, 1, 2, 3, 4]
    assert desk.size() == 0


def test_the_order_is_that_of_publishing_whatever_the_broker_does(
    desk: Desk, charge: LockedTask, ran: Ran
) -> None:
    # Given tasks of one order in two queues of the broker, one of them slow
    for number in range(6):
        charge.apply_async(("42", number), queue="slow" if number % 2 else "fast")
    # When workers take from the fast one as long as there is something in it
    while desk.size("fast") or desk.size("slow"):
        desk.deliver("fast" if desk.size("fast") else "slow")
    # Then the order is kept
    assert ran == list(range(6))


def test_other_keys_do_not_wait(desk: Desk, charge: LockedTask) -> None:
    for order in ("42", "43", "44"):
        charge.delay(order)
    assert desk.size() == 3


@pytest.mark.usefixtures("clock")  # which stands, so that no call goes unanswered for too long
def test_two_publishers_at_once_take_one_place_each(desk: Desk, charge: LockedTask) -> None:
    start = threading.Barrier(8)

    def publish() -> None:
        start.wait()
        for _ in range(10):
            charge.delay("42")

    threads = [threading.Thread(target=publish) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert desk.size() == 1
    ranks = [entry.rank for entry in peek(desk).waiting]
    assert len(set(ranks)) == 79
    assert desk.deliver_all(at_most=100) == 80


def test_a_body_of_the_key_publishes_behind_itself(desk: Desk, ran: Ran) -> None:
    @desk.locked("order:{order}", name="charge", on_contention=Queue(ordered="publish"))
    def charge(order: str, number: int) -> None:
        if number < 3:
            charge.delay(order, number + 1)
        assert desk.size() == 0
        ran.append(number)

    charge.delay("42", 0)
    desk.deliver_all()
    assert ran == [0, 1, 2, 3]


def test_one_with_a_countdown_takes_its_place_when_it_is_due(
    desk: Desk, charge: LockedTask, ran: Ran
) -> None:
    # Given one that is published first and due later
    charge.apply_async(("42", 1), countdown=60)
    charge.delay("42", 2)
    charge.delay("42", 3)
    woken, later = desk.take(), desk.take()
    assert woken is not None
    assert later is not None
    assert later.headers["eta"] is not None
    assert "dlock" not in later.headers

    # When it is due, while another one is at the broker
    desk.run(later)
    assert peek(desk).parked == 2
    desk.run(woken)
    desk.deliver_all()

    # Then it has run behind what had been published until then
    assert ran == [2, 3, 1]


def test_a_retry_takes_no_place_before_it_is_due(desk: Desk, ran: Ran) -> None:
    @desk.locked("order:{order}", name="charge", on_contention=Queue(ordered="publish"), bind=True)
    def charge(self: Any, order: str, number: int) -> int:
        ran.append((number, self.request.retries))
        if number == 1 and not self.request.retries:
            raise self.retry(countdown=0)
        return number

    first = charge.delay("42", 1)
    charge.delay("42", 2)
    desk.deliver()
    assert peek(desk).parked == 0, "its retry is at the broker"
    desk.deliver_all()

    assert sorted(ran) == [(1, 0), (1, 1), (2, 0)]
    assert first.get() == 1


def test_what_replaces_a_task_takes_a_place_of_its_own(
    desk: Desk, make_ordered: MakeOrdered, ran: Ran
) -> None:
    charge = make_ordered()

    @desk.locked("order:{order}", name="split", on_contention=Queue(ordered="publish"), bind=True)
    def split(self: Any, order: str) -> None:
        raise self.replace(charge.s(order, 1))

    replaced = split.delay("42")
    charge.delay("42", 2)
    desk.deliver_all()
    assert ran == [2, 1]
    assert replaced.get() == 1


def test_what_the_library_publishes_again_has_had_its_place(
    desk: Desk, charge: LockedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    charge.delay("42")
    message = desk.take()
    assert message is not None

    def away(*_: Any) -> None:
        raise BackendUnavailable("gone")

    # When the worker cannot reach the store, and publishes the message again to wait for it
    with monkeypatch.context() as patch:
        patch.setattr(runtime(desk.app).backend, "enter", away)
        desk.run(message)

    # Then it is at the broker, with its turn still called
    assert len(desk.happened(Rescheduled)) == 1
    assert peek(desk).parked == 0
    desk.deliver_all()
    assert nothing_is_left(desk)


@pytest.mark.parametrize("how", ["apply_async", "apply"])
def test_an_eager_task_runs_at_once(desk: Desk, charge: LockedTask, ran: Ran, how: str) -> None:
    desk.app.conf.task_always_eager = how == "apply_async"

    assert getattr(charge, how)(("42", 5)).get() == 5

    assert ran == [5]
    assert nothing_is_left(desk)


def test_beat_takes_places_too(desk: Desk, charge: LockedTask, ran: Ran) -> None:
    desk.app.conf.beat_schedule = {
        "often": {"task": "charge", "schedule": 1.0, "args": ("42", 9)},
    }
    scheduler = Scheduler(desk.app)
    for _ in range(3):
        scheduler.apply_entry(scheduler.schedule["often"], producer=scheduler.producer)
    assert (desk.size(), peek(desk).parked) == (1, 2)
    desk.deliver_all()
    assert ran == [9, 9, 9]
