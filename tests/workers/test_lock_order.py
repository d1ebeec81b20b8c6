"""Locks that are nested in inverse order are found, though nobody has ever waited."""

from __future__ import annotations

import asyncio
import inspect
import re

import pytest

from celery_dlock import Limit, Shared, lock
from celery_dlock.locks import lock_order
from celery_dlock.locks.lock_order import LockOrder, watch
from celery_dlock.runtime import forget
from celery_dlock.testing import checked_lock_order, held_by_another
from tests.services.desk import Desk


@pytest.fixture(name="order")
def watched(desk: Desk) -> LockOrder:
    return watch(desk.app)


def nest(desk: Desk, *keys: str, timeout: float = 5.0) -> None:
    """Hold each of *keys* inside those before."""
    if keys:
        with lock(keys[0], app=desk.app, timeout=timeout):
            nest(desk, *keys[1:], timeout=timeout)


def here() -> str:
    """The line that follows the one which calls this."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"{__file__}:{frame.f_back.f_lineno + 1}"


def test_the_first_inversion_is_found_with_both_orders(desk: Desk, order: LockOrder) -> None:
    with lock("order:1", app=desk.app):
        place = here()
        with lock("account:7", app=desk.app):
            pass
    assert order.inversions == []
    with lock("account:8", app=desk.app):
        inverse = here()
        with lock("order:2", app=desk.app):
            pass
    # And no more of these two
    for _ in range(3):
        nest(desk, "order:3", "account:9")
        nest(desk, "account:9", "order:3")

    (warning,) = order.inversions
    assert warning.startswith(
        f"locks are nested in inverse order: 'order:*' inside 'account:*' at {inverse}, and "
        f"'account:*' inside 'order:*' at {place}."
    )


def test_a_tasks_lock_is_known_by_its_template(desk: Desk, order: LockOrder) -> None:
    @desk.locked(["tenant:{name}", Shared("region:{name}")], name="bill")
    def bill(name: str) -> None:
        nest(desk, "report")

    bill.delay("acme")
    desk.deliver()
    nest(desk, "report", "tenant:zoo")
    nest(desk, "report", "region:zoo")

    assert [re.findall(r"'([^']*)' inside", each)[0] for each in order.inversions] == [
        "tenant:*",
        "region:*",
    ]


def test_two_keys_that_look_alike_are_nested_as_one_lock(desk: Desk, order: LockOrder) -> None:
    nest(desk, "account:1", "account:2")
    nest(desk, "account:3", "account:4")
    assert order.inversions == []

    nest(desk, "account:2", "account:1")

    (warning,) = order.inversions
    assert "'account:* (the lesser key)' inside 'account:* (the greater key)' at" in warning


def test_a_circle_of_three_is_found_and_told_as_a_whole(desk: Desk, order: LockOrder) -> None:
    nest(desk, "a", "b")
    nest(desk, "b", "c")
    nest(desk, "b", "d")
    assert order.inversions == []

    nest(desk, "c", "a")

    (warning,) = order.inversions
    assert re.findall(r"'(.)' inside '(.)'", warning) == [("a", "c"), ("b", "a"), ("c", "b")]


def test_what_cannot_wait_for_each_other_is_no_inversion(desk: Desk, order: LockOrder) -> None:
    # Several keys of one lock, in whatever order they are written
    with lock(["a", Limit("b", 2)], app=desk.app), lock("c", app=desk.app):
        pass
    with lock([Limit("b", 2), "a"], app=desk.app):
        nest(desk, "a", "c")  # held already: not asked for
    # Who asks once, and a key that somebody else holds
    nest(desk, "c", "a", timeout=0)
    with held_by_another("c", app=desk.app):
        nest(desk, "a", "b")

    assert order.inversions == []


def test_a_coroutine_is_told_of_its_own_line(desk: Desk, order: LockOrder) -> None:
    async def nested() -> str:
        async with lock("b", app=desk.app):
            place = here()
            async with lock("a", app=desk.app):
                return place

    nest(desk, "a", "b")
    place = asyncio.run(nested())

    (warning,) = order.inversions
    assert f"'a' inside 'b' at {place}, and" in warning


def test_a_test_fails_that_nests_two_locks_otherwise_than_one_before(desk: Desk) -> None:
    assert desk.app not in lock_order._watched  # elsewhere nothing is noted
    with checked_lock_order(desk.app):
        nest(desk, "a", "b")
    forget(desk.app)  # as between two tests
    with (
        pytest.raises(AssertionError, match=r"'a' inside 'b' at .*, and 'b' inside 'a' at"),
        checked_lock_order(desk.app),
    ):
        nest(desk, "b", "a")
    with checked_lock_order(desk.app):
        nest(desk, "b", "a")
