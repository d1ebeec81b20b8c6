"""Tasks that wait for several keys: nobody blocks another one for good, and the order is kept."""

from __future__ import annotations

import pytest

from celery_dlock import LockedTask, Queue, lock
from celery_dlock.core.events import Released
from celery_dlock.runtime import runtime
from tests.services.desk import Desk

pytestmark = pytest.mark.stores

KEYS = ("order:42", "stock")  # in the order in which they are taken

Ran = list[int]


@pytest.fixture
def ran() -> Ran:
    return []


@pytest.fixture
def charge(desk: Desk, ran: Ran) -> LockedTask:
    @desk.locked(["stock", "order:{order}"], name="charge", on_contention=Queue(max_wait=60))
    def charge(order: str, number: int) -> None:
        ran.append(number)

    return charge


def publish(desk: Desk, charge: LockedTask, *numbers: int) -> None:
    for number in numbers:
        charge.delay("42", number)
        desk.deliver()


@pytest.mark.every_store
def test_who_waits_for_either_key_gets_both(desk: Desk, charge: LockedTask, ran: Ran) -> None:
    # Given some that wait for the second key, the first of them called for it by now
    with lock("stock", app=desk.app, timeout=0):
        publish(desk, charge, 0, 1, 2)
        head = desk.take()
        assert head is None
    head = desk.take()
    assert head is not None
    # And others that wait for the first one
    with lock("order:42", app=desk.app, timeout=0):
        publish(desk, charge, 3, 4)
    # When the turn of each stands against a turn of the other
    desk.run(head)
    desk.deliver_all()
    # Then nobody goes round in circles
    assert ran == [0, 1, 2, 3, 4]
    assert len(desk.happened(Released)) == 5 + 2


def test_a_turn_at_a_key_that_the_task_does_not_have_any_more_is_given_back(desk: Desk) -> None:
    # Given one that waits, and a new version of it, which takes another key
    prefix = "old:"

    @desk.locked(lambda order: prefix + order, name="charge", on_contention=Queue(max_wait=60))
    def charge(order: str) -> int:
        return len(runtime(desk.app).backend.peek("old:42").grants)

    result = charge.delay("42")
    with lock("old:42", app=desk.app, timeout=0):
        desk.deliver()
    prefix = "new:"
    # When it is woken
    desk.deliver()
    # Then nobody waits for its turn at the old one
    assert result.get() == 0


def test_a_turn_that_is_kept_goes_when_its_task_ends(
    desk: Desk, charge: LockedTask, ran: Ran
) -> None:
    # Given a task that was woken for the stock and waits for the order
    with lock("stock", app=desk.app, timeout=0):
        result = charge.delay("42", 0)
        desk.deliver()
    with lock("order:42", app=desk.app, timeout=0):
        desk.deliver()
        store = runtime(desk.app).backend
        (turn,) = store.peek("stock").grants
        (waits,) = store.peek("order:42").waiting
        assert turn.task == waits.task
        # When it is woken to end
        runtime(desk.app).wake(store.cancel("order:42", waits.task).wakes)
        desk.deliver_all()
    # Then the stock is free for others
    assert result.state == "REVOKED"
    assert all(not store.peek(key).grants for key in KEYS)
    publish(desk, charge, 1)
    assert ran == [1]
