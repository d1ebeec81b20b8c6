"""``Ordered()``: the place is taken where the task is published, and kept from there."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from celery import chain, group
from celery.beat import Scheduler
from kombu.message import Message

from celery_dlock import (
    BackendUnavailable,
    LockContended,
    LockedTask,
    LockTimeout,
    Ordered,
    Shared,
    current_lease,
    lock,
    operate,
)
from celery_dlock.core.events import Dropped, Parked, Rescheduled
from celery_dlock.core.operations import Replay
from celery_dlock.core.state import Claim
from celery_dlock.delivery import taking
from celery_dlock.ops.explain import explain
from celery_dlock.testing import ManualClock
from tests.services.desk import Desk
from tests.services.unique import without_answer
from tests.workers.conftest import nothing_is_left, revoke

pytestmark = pytest.mark.stores

KEY = "order:42"


MakeOrdered = Callable[..., LockedTask]


@pytest.fixture
def charge(make_ordered: MakeOrdered) -> LockedTask:
    return make_ordered()


@pytest.fixture
def make_retrying(desk: Desk) -> MakeOrdered:
    """``make_retrying(policy, countdown)``: a task of which the number 1 is tried again."""

    def make(policy: Any, countdown: int) -> LockedTask:
        @desk.locked("order:{order}", name="charge", on_contention=policy, bind=True)
        def charge(self: LockedTask, order: str, number: int) -> int:
            desk.ran.append((number, self.request.retries))
            if number == 1 and not self.request.retries:
                raise self.retry(countdown=countdown)
            return number

        return charge

    return make


def test_only_the_head_is_at_the_broker(desk: Desk, charge: LockedTask) -> None:
    for number in range(5):
        charge.delay("42", number)
        assert desk.size() == 1
    assert desk.store.peek(KEY).parked == 4

    for left in (3, 2, 1, 0):
        desk.deliver()
        assert (desk.size(), desk.store.peek(KEY).parked) == (1, left)
    desk.deliver()
    assert desk.ran == [0, 1, 2, 3, 4]
    assert desk.size() == 0


def test_the_order_is_that_of_publishing_by_any_broker(desk: Desk, charge: LockedTask) -> None:
    # Given tasks of one order in two queues of the broker, one of them slow
    for number in range(6):
        charge.apply_async(("42", number), queue="slow" if number % 2 else "fast")
    # When workers take from the fast one as long as there is something in it
    while desk.size("fast") or desk.size("slow"):
        desk.deliver("fast" if desk.size("fast") else "slow")
    assert desk.ran == list(range(6))


def test_a_body_of_the_key_publishes_behind_itself(desk: Desk) -> None:
    @desk.locked("order:{order}", name="charge", on_contention=Ordered())
    def charge(order: str, number: int) -> None:
        if number < 3:
            charge.delay(order, number + 1)
        assert desk.size() == 0
        desk.ran.append(number)

    charge.delay("42", 0)
    desk.deliver_all()
    assert desk.ran == [0, 1, 2, 3]


def test_one_with_a_countdown_takes_its_place_when_due(desk: Desk, charge: LockedTask) -> None:
    # Given one that is published first and due later
    charge.apply_async(("42", 1), countdown=60)
    charge.delay("42", 2)
    charge.delay("42", 3)
    woken, later = desk.receive(), desk.receive()
    assert later.headers["eta"] is not None
    assert "dlock" not in later.headers

    # When it is due, while another one is at the broker
    desk.run(later)
    assert desk.store.peek(KEY).parked == 2
    desk.run(woken)
    desk.deliver_all()

    assert desk.ran == [2, 3, 1]


@pytest.mark.every_store
def test_a_retry_is_the_next_to_run(desk: Desk, make_retrying: MakeOrdered) -> None:
    charge = make_retrying(Ordered(), 0)
    first = charge.delay("42", 1)
    charge.delay("42", 2)

    desk.deliver_all()

    assert desk.ran == [(1, 0), (1, 1), (2, 0)]
    assert first.get() == 1
    assert nothing_is_left(desk)


@pytest.mark.parametrize("countdown", [60, 3600])
def test_a_retry_waits_in_the_store_until_it_is_due_and_the_others_behind_it(
    desk: Desk, clock: ManualClock, make_retrying: MakeOrdered, countdown: int
) -> None:
    charge = make_retrying(Ordered(), countdown)
    first = charge.delay("42", 1)
    charge.delay("42", 2)
    desk.deliver_all()
    assert (first.state, desk.ran) == ("RETRY", [(1, 0)])
    assert [event.refused for event in desk.happened(Parked)] == [False] * 3

    desk.passes(countdown)
    desk.deliver_all()

    assert desk.ran == [(1, 0), (1, 1), (2, 0)]
    assert nothing_is_left(desk)


def test_a_retry_that_waits_and_who_waits_behind_it_are_explained(
    desk: Desk, make_retrying: MakeOrdered
) -> None:
    charge = make_retrying(Ordered(), 3600)
    first = charge.delay("42", 1)
    second = charge.delay("42", 2)
    desk.deliver_all()

    retry, behind = (explain(desk.app, each.id).sentences for each in (first, second))

    assert f"is a retry that waits for '{KEY}' until it is due, at " in retry[0]
    assert f"behind the retry of {first.id}, which is due at " in behind[0]
    assert [entry.woken for entry in operate.waiting(KEY, app=desk.app)] == [False, False]


def test_a_retry_whose_attempt_is_killed_before_it_ends_waits_for_its_time(
    desk: Desk, clock: ManualClock, make_retrying: MakeOrdered
) -> None:
    charge = make_retrying(Ordered(), 60)
    charge.delay("42", 1)
    with desk.patch.context() as patch:
        patch.setattr(desk.store, "leave", without_answer())
        desk.deliver()

    desk.passes(59)
    desk.sweep()
    assert desk.size() == 0
    charge.delay("42", 2)
    desk.passes(1)
    desk.deliver_all()

    assert desk.ran == [(1, 0), (1, 1), (1, 0), (2, 0)]


def test_a_retry_that_the_store_does_not_take_goes_by_the_broker(
    desk: Desk, make_retrying: MakeOrdered
) -> None:
    charge = make_retrying(Ordered(), 0)
    charge.delay("42", 1)
    message = desk.receive()
    enter, asked = desk.store.enter, list[Claim]()

    def first_only(claim: Claim, message: bytes | None = None) -> Any:
        asked.append(claim)
        if len(asked) > 1:
            raise BackendUnavailable("away")
        return enter(claim, message)

    with desk.patch.context() as patch:
        patch.setattr(desk.store, "enter", first_only)
        desk.run(message)
    charge.delay("42", 2)
    desk.deliver_all()

    assert desk.ran == [(1, 0), (1, 1), (2, 0)]


def test_a_revoked_retry_ends_and_the_next_one_runs(desk: Desk, make_retrying: MakeOrdered) -> None:
    charge = make_retrying(Ordered(), 3600)
    first = charge.delay("42", 1)
    charge.delay("42", 2)
    desk.deliver()

    revoke(desk, first.id)
    desk.deliver_all()

    assert desk.ran == [(1, 0), (2, 0)]
    assert first.state == "REVOKED"


@pytest.mark.every_store
def test_with_several_keys_the_calls_with_the_same_keys_run_in_their_order(
    desk: Desk, make_ordered: MakeOrdered
) -> None:
    charge = make_ordered(key=["order:{order}", "stock"])
    with lock("stock", app=desk.app, timeout=0):
        for number in range(5):
            charge.delay("42", number)
        desk.deliver_all()  # the first waits for the stock, and the others behind it
    desk.deliver_all()

    assert desk.ran == [0, 1, 2, 3, 4]
    assert nothing_is_left(desk)
    assert nothing_is_left(desk, "stock")


def test_a_child_of_a_held_key_waits_before_those_that_were_called_later(
    desk: Desk, make_ordered: MakeOrdered
) -> None:
    charge = make_ordered(key=["order:{order}", Shared("orders")])
    with lock("orders", app=desk.app, timeout=0):
        for number in range(5):
            charge.delay("42", number)
        desk.deliver_all()
    desk.deliver_all()

    assert desk.ran == [0, 1, 2, 3, 4]


def failing(desk: Desk, policy: Ordered, **options: Any) -> LockedTask:
    @desk.locked("order:{order}", name="ship", on_contention=policy, **options)
    def ship(order: str, number: int) -> None:
        desk.ran.append(number)
        if number == 1 and desk.ran.count(1) == 1:
            raise ValueError("no carrier")

    return ship


def test_after_a_failure_the_next_one_runs(desk: Desk) -> None:
    ship = failing(desk, Ordered())
    for number in (1, 2):
        ship.delay("42", number)

    desk.deliver_all()

    assert desk.ran == [1, 2]
    assert nothing_is_left(desk)


@pytest.mark.every_store
@pytest.mark.parametrize("late", [True, False])
def test_after_a_failure_none_runs_until_a_person_says_so(desk: Desk, late: bool) -> None:
    ship = failing(desk, Ordered(on_failure="hold"), acks_late=late)
    for number in (1, 2):
        ship.delay("42", number)
    desk.deliver_all()
    assert desk.ran == [1]
    hold = operate.on_hold(KEY, app=desk.app)
    assert hold is not None
    assert hold.by == "ship"

    # Replayed, it is the first again
    (letter,) = desk.store.dead()
    assert desk.store.apply(Replay(KEY, letter.dead.task)).verdict
    assert operate.end_hold(KEY, hold, app=desk.app)
    desk.deliver_all()

    assert desk.ran == [1, 1, 2]
    assert nothing_is_left(desk)


def test_a_task_that_waited_too_long_shuts_its_key(desk: Desk, clock: ManualClock) -> None:
    ship = failing(desk, Ordered(max_wait=60, on_failure="hold"))
    with lock(KEY, app=desk.app, ttl=3600):
        first = ship.delay("42", 1)
        ship.delay("42", 2)
        desk.passes(60)
        desk.sweep()
        desk.deliver_all()
    desk.deliver_all()

    assert isinstance(first.result, LockTimeout)
    assert (desk.ran, desk.store.peek(KEY).hold is not None) == ([], True)


def test_what_replaces_a_task_takes_its_own_place(desk: Desk, make_ordered: MakeOrdered) -> None:
    charge = make_ordered()

    @desk.locked("order:{order}", name="split", on_contention=Ordered(), bind=True)
    def split(self: Any, order: str) -> None:
        raise self.replace(charge.s(order, 1))

    replaced = split.delay("42")
    charge.delay("42", 2)
    desk.deliver_all()
    assert desk.ran == [2, 1]
    assert replaced.get() == 1


def test_what_the_library_publishes_again_has_had_its_place(desk: Desk, charge: LockedTask) -> None:
    charge.delay("42")
    message = desk.receive()

    # When the worker cannot reach the store, and publishes the message again to wait for it
    with desk.patch.context() as patch:
        patch.setattr(desk.store, "enter", without_answer())
        desk.run(message)

    assert len(desk.happened(Rescheduled)) == 1
    assert desk.store.peek(KEY).parked == 0
    desk.deliver_all()
    assert nothing_is_left(desk)


@pytest.mark.parametrize("how", ["apply_async", "apply"])
def test_an_eager_task_runs_at_once(desk: Desk, charge: LockedTask, how: str) -> None:
    desk.app.conf.task_always_eager = how == "apply_async"

    assert getattr(charge, how)(("42", 5)).get() == 5

    assert desk.ran == [5]
    assert nothing_is_left(desk)


def test_beat_takes_places_too(desk: Desk, charge: LockedTask) -> None:
    desk.app.conf.beat_schedule = {"often": {"task": "charge", "schedule": 1.0, "args": ("42", 9)}}
    scheduler = Scheduler(desk.app)
    for _ in range(3):
        scheduler.apply_entry(scheduler.schedule["often"], producer=scheduler.producer)
    assert (desk.size(), desk.store.peek(KEY).parked) == (1, 2)
    desk.deliver_all()
    assert desk.ran == [9, 9, 9]


# In groups and chains, and with several keys.


def test_a_group_takes_its_places_in_its_order(desk: Desk, charge: LockedTask) -> None:
    result = group(charge.s("42", number) for number in range(5)).apply_async()
    assert desk.size() == 1
    desk.deliver_all()
    assert desk.ran == [0, 1, 2, 3, 4]
    assert result.get() == [0, 1, 2, 3, 4]


def test_each_of_a_chain_takes_its_place_when_sent(desk: Desk, charge: LockedTask) -> None:
    result = chain(charge.si("42", 1), charge.si("42", 2)).apply_async()
    charge.delay("42", 3)
    desk.deliver_all()
    assert desk.ran == [1, 3, 2]
    assert result.get() == 2


def test_links_take_places_behind(desk: Desk, charge: LockedTask) -> None:
    charge.apply_async(("42", 1), link=charge.si("42", 4))
    charge.delay("42", 2)
    desk.deliver_all()
    assert desk.ran == [1, 2, 4]


def test_with_several_keys_the_first_has_the_place(desk: Desk, make_ordered: MakeOrdered) -> None:
    charge = make_ordered(key=["stock", "order:{order}"])
    for number in range(4):
        charge.delay("42", number)
    assert desk.store.peek(KEY).parked == 3
    with lock("stock", app=desk.app, timeout=0):
        desk.deliver()  # it had the order, and waits for the stock
        assert desk.store.peek("stock").parked == 1
    desk.deliver_all()
    assert desk.ran == [0, 1, 2, 3]


# Where a place is not to be had: a full queue, no store, and publishing past the queue.


@pytest.fixture(autouse=True)
def nothing_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "_noted", set())


@pytest.mark.parametrize(
    ("overflow", "runs", "ends"),
    [("fail", [1, 2], LockContended), ("drop_newest", [1, 2], dict), ("drop_oldest", [1, 3], int)],
)
def test_a_full_queue_does_as_its_policy_says(
    desk: Desk, make_ordered: MakeOrdered, overflow: Any, runs: list[int], ends: type
) -> None:
    charge = make_ordered(Ordered(max_waiting=1, overflow=overflow))
    *_, newest = [charge.delay("42", number) for number in (1, 2, 3)]
    head, ended = desk.receive(), desk.receive()
    assert desk.size() == 0

    desk.run(ended)
    desk.run(head)
    desk.deliver_all()

    assert (desk.ran, type(newest.result)) == (runs, ends)


def test_without_the_store_nothing_is_sent(desk: Desk, charge: LockedTask) -> None:
    def away(*_: Any) -> None:
        raise BackendUnavailable("gone")

    desk.patch.setattr(desk.store, "enter", without_answer())
    with pytest.raises(BackendUnavailable):
        charge.delay("42")
    assert desk.size() == 0


def test_published_again_under_its_id_it_has_one_place(desk: Desk, charge: LockedTask) -> None:
    with lock(KEY, app=desk.app, timeout=0):
        for _ in range(3):
            charge.apply_async(("42", 1), task_id="one")
        assert desk.store.peek(KEY).parked == 1
    charge.apply_async(("42", 1), task_id="one")  # now it is woken
    assert desk.size() == 1
    desk.deliver()
    charge.apply_async(("42", 1), task_id="one")  # and now it is done
    assert desk.size() == 0
    assert desk.ran == [1]
    assert {event.reason for event in desk.happened(Dropped)} == {"waiting", "done"}


def test_a_pool_of_one_connection_is_enough(desk: Desk, charge: LockedTask) -> None:
    desk.app.conf.broker_pool_limit = 1
    published = threading.Event()

    def publish() -> None:
        group(charge.s("42", number) for number in range(3)).apply_async()
        published.set()

    threading.Thread(target=publish, daemon=True).start()

    assert published.wait(10), "it waits for a second connection while it has the only one"
    desk.deliver_all()
    assert desk.ran == [0, 1, 2]


def by_name(desk: Desk, charge: LockedTask, number: int) -> None:
    desk.app.send_task("charge", ("42", number))


def by_connection(desk: Desk, charge: LockedTask, number: int) -> None:
    charge.apply_async(("42", number), connection=desk.connection)


@pytest.mark.parametrize("publish", [by_name, by_connection])
def test_sent_past_the_queue_it_takes_its_place_as_it_arrives(
    desk: Desk, charge: LockedTask, publish: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "celery_dlock"):
        charge.delay("42", 0)
        head = desk.receive()
        for number in (1, 2):
            publish(desk, charge, number)
        assert desk.size() == 2
        taken = [desk.take(), desk.take()]
        for message in reversed(taken):
            assert isinstance(message, Message)
            desk.run(message)
        desk.run(head)
        desk.deliver_all()

    assert desk.ran == [0, 2, 1]
    assert caplog.text.count("is ordered by its arrival") == 1


def test_who_took_a_place_is_not_told_of(
    desk: Desk, charge: LockedTask, caplog: pytest.LogCaptureFixture
) -> None:
    charge.delay("42")
    charge.delay("42")
    charge.apply_async(("42",), countdown=1)
    desk.deliver_all()
    assert "is ordered by its arrival" not in caplog.text


def test_a_publisher_of_other_tasks_needs_no_store(desk: Desk) -> None:
    @desk.locked("order:{order}", name="other")
    def other(order: str) -> None:
        current_lease()

    desk.app.conf.dlock_url = None
    other.delay("42")
    assert desk.size() == 1
