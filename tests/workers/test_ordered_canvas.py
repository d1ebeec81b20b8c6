"""Order as published in groups, chains and chords, with limits, readers and several keys."""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import chain, chord, group

from celery_dlock import LockedTask, lock
from celery_dlock.core.state import KeyState
from celery_dlock.runtime import runtime
from tests.services.desk import Desk

pytestmark = pytest.mark.stores

KEY = "order:42"

Ran = list[Any]
MakeOrdered = Callable[..., LockedTask]


@pytest.fixture
def charge(make_ordered: MakeOrdered) -> LockedTask:
    return make_ordered()


def peek(desk: Desk, key: str = KEY) -> KeyState:
    return runtime(desk.app).backend.peek(key)


def test_a_group_takes_its_places_in_its_order(desk: Desk, charge: LockedTask, ran: Ran) -> None:
    result = group(charge.s("42", number) for number in range(5)).apply_async()
    assert desk.size() == 1
    desk.deliver_all()
    assert ran == [0, 1, 2, 3, 4]
    assert result.get() == [0, 1, 2, 3, 4]


def test_a_chord_ends(desk: Desk, charge: LockedTask, ran: Ran) -> None:
    @desk.app.task(name="total")
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    result = chord([charge.s("42", number) for number in range(1, 4)])(total.s())
    desk.deliver_all()
    assert result.get() == 6


def test_each_of_a_chain_takes_its_place_when_it_is_published(
    desk: Desk, charge: LockedTask, ran: Ran
) -> None:
    result = chain(charge.si("42", 1), charge.si("42", 2)).apply_async()
    charge.delay("42", 3)
    desk.deliver_all()
    assert ran == [1, 3, 2]
    assert result.get() == 2


def test_links_take_places_behind(desk: Desk, charge: LockedTask, ran: Ran) -> None:
    charge.apply_async(("42", 1), link=charge.si("42", 4))
    charge.delay("42", 2)
    desk.deliver_all()
    assert ran == [1, 2, 4]


def test_as_many_are_woken_as_may_run(desk: Desk, make_ordered: MakeOrdered, ran: Ran) -> None:
    charge = make_ordered(limit=2)
    for number in range(5):
        charge.delay("42", number)
    assert (desk.size(), peek(desk).parked) == (2, 3)
    desk.deliver_all()
    assert ran == [0, 1, 2, 3, 4]


def test_readers_are_woken_together(desk: Desk, make_ordered: MakeOrdered, ran: Ran) -> None:
    read, write = make_ordered(name="read", shared=True), make_ordered(name="write")
    for task, number in ((read, 0), (read, 1), (write, 2), (read, 3)):
        task.delay("42", number)
    assert desk.size() == 2
    desk.deliver_all()
    assert ran == [0, 1, 2, 3]


def test_with_several_keys_the_place_is_in_the_queue_of_the_first(
    desk: Desk, make_ordered: MakeOrdered, ran: Ran
) -> None:
    charge = make_ordered(key=["stock", "order:{order}"])
    for number in range(4):
        charge.delay("42", number)
    assert peek(desk).parked == 3
    with lock("stock", app=desk.app, timeout=0):
        desk.deliver()  # it had the order, and waits for the stock
        assert peek(desk, "stock").parked == 1
    desk.deliver_all()
    assert ran == [0, 1, 2, 3]
