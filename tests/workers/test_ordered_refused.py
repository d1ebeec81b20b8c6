"""Where a place is not to be had: a full queue, no store, and publishing past the queue."""

# mypy: allow-untyped-calls

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from celery import group
from kombu.message import Message

from celery_dlock import (
    BackendUnavailable,
    LockContended,
    LockedTask,
    Queue,
    Replace,
    current_lease,
    lock,
)
from celery_dlock.core.events import Dropped
from celery_dlock.core.state import KeyState
from celery_dlock.delivery import taking
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


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "_told", set())


def peek(desk: Desk, key: str = KEY) -> KeyState:
    return runtime(desk.app).backend.peek(key)


def full(desk: Desk, charge: LockedTask) -> Any:
    """One runs, one waits, and one more is published."""
    charge.delay("42", 1)
    charge.delay("42", 2)
    return charge.delay("42", 3)


def test_a_full_queue_fails_the_newest(desk: Desk, make_ordered: MakeOrdered, ran: Ran) -> None:
    result = full(desk, make_ordered(Queue(max_waiting=1, ordered="publish")))
    head, newest = desk.take(), desk.take()
    assert head is not None
    assert newest is not None

    desk.run(newest)
    with pytest.raises(LockContended, match=KEY):
        result.get()
    desk.run(head)
    desk.deliver_all()
    assert ran == [1, 2]


def test_a_full_queue_skips_the_newest(desk: Desk, make_ordered: MakeOrdered) -> None:
    policy = Queue(max_waiting=1, overflow="drop_newest", ordered="publish")
    result = full(desk, make_ordered(policy))
    _, newest = desk.take(), desk.take()
    assert newest is not None
    desk.run(newest)
    assert result.get()["skipped"] is True


def test_a_full_queue_drops_the_oldest(desk: Desk, make_ordered: MakeOrdered, ran: Ran) -> None:
    full(desk, make_ordered(Queue(max_waiting=1, overflow="drop_oldest", ordered="publish")))
    assert desk.size() == 2, "the first one, and the second to end"
    desk.deliver_all()
    assert ran == [1, 3]


@pytest.mark.parametrize(
    "policy",
    [Replace(), Queue(max_waiting=1, overflow="drop_oldest", ordered="publish")],
    ids=["replace", "drop_oldest"],
)
def test_other_tasks_that_wait_for_the_key_are_not_dropped(
    desk: Desk, charge: LockedTask, ran: Ran, policy: Any
) -> None:
    @desk.locked("order:{order}", name="newest", on_contention=policy)
    def newest(order: str, number: int) -> None:
        ran.append(f"newest {number}")

    for number in (1, 2):
        charge.delay("42", number)
    head = desk.take()
    assert head is not None
    for number in (1, 2, 3):
        newest.delay("42", number)
    desk.deliver_all()
    desk.run(head)
    desk.deliver_all()
    assert ran == [1, 2, "newest 3"]


def test_without_the_store_the_publisher_gets_an_error_and_nothing_is_sent(
    desk: Desk, charge: LockedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> None:
        raise BackendUnavailable("gone")

    monkeypatch.setattr(runtime(desk.app).backend, "enter", away)
    with pytest.raises(BackendUnavailable):
        charge.delay("42")
    assert desk.size() == 0


def test_a_call_that_fits_no_body_is_an_error_where_it_is_made(
    desk: Desk, charge: LockedTask
) -> None:
    with pytest.raises(TypeError):
        charge.delay("42", 1, 2, 3)
    assert desk.size() == 0
    assert nothing_is_left(desk)


def test_published_again_under_its_id_it_has_one_place(
    desk: Desk, charge: LockedTask, ran: Ran
) -> None:
    with lock(KEY, app=desk.app, timeout=0):
        for _ in range(3):
            charge.apply_async(("42", 1), task_id="one")
        assert peek(desk).parked == 1
    charge.apply_async(("42", 1), task_id="one")  # now it is woken
    assert desk.size() == 1
    desk.deliver()
    charge.apply_async(("42", 1), task_id="one")  # and now it is done
    assert desk.size() == 0
    assert ran == [1]
    assert {event.reason for event in desk.happened(Dropped)} == {"waiting", "done"}


def test_a_pool_of_one_connection_is_enough(desk: Desk, charge: LockedTask, ran: Ran) -> None:
    desk.app.conf.broker_pool_limit = 1
    published = threading.Event()

    def publish() -> None:
        group(charge.s("42", number) for number in range(3)).apply_async()
        published.set()

    threading.Thread(target=publish, daemon=True).start()

    assert published.wait(10), "it waits for a second connection while it has the only one"
    desk.deliver_all()
    assert ran == [0, 1, 2]


def by_name(desk: Desk, charge: LockedTask, number: int) -> None:
    desk.app.send_task("charge", ("42", number))


def by_connection(desk: Desk, charge: LockedTask, number: int) -> None:
    charge.apply_async(("42", number), connection=desk.connection)


@pytest.mark.parametrize("publish", [by_name, by_connection])
def test_sent_past_the_queue_it_takes_its_place_as_it_arrives(
    desk: Desk,
    charge: LockedTask,
    ran: Ran,
    publish: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "celery_dlock"):
        charge.delay("42", 0)
        head = desk.take()
        assert head is not None
        for number in (1, 2):
            publish(desk, charge, number)
        assert desk.size() == 2
        taken = [desk.take(), desk.take()]
        for message in reversed(taken):
            assert isinstance(message, Message)
            desk.run(message)
        desk.run(head)
        desk.deliver_all()

    assert ran == [0, 2, 1]
    assert caplog.text.count("is ordered by its arrival") == 1


def test_who_took_a_place_is_not_told_of(
    desk: Desk, charge: LockedTask, caplog: pytest.LogCaptureFixture
) -> None:
    charge.delay("42")
    charge.delay("42")
    charge.apply_async(("42",), countdown=1)
    desk.deliver_all()
    assert "takes its place" not in caplog.text


def test_a_publisher_of_other_tasks_needs_no_store(desk: Desk) -> None:
    @desk.locked("order:{order}", name="other")
    def other(order: str) -> None:
        current_lease()

    desk.app.conf.dlock_url = None
    other.delay("42")
    assert desk.size() == 1
