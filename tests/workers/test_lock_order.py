"""Locks that are nested in inverse order are warned of, though nobody has ever waited."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import re
import string

import pytest

from celery_dlock import Limit, lock
from celery_dlock.locks import lock_order
from celery_dlock.locks.lock_order import MOST, LockOrder, watch
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


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(r.levelno, r.getMessage()) for r in caplog.records if r.name == "celery_dlock"]


def here() -> str:
    """The line that follows the one which calls this."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"{__file__}:{frame.f_back.f_lineno + 1}"


def test_the_first_inversion_is_warned_of_with_both_orders_and_where_they_are(
    desk: Desk, order: LockOrder, caplog: pytest.LogCaptureFixture
) -> None:
    with lock("order:1", app=desk.app):
        place = here()
        with lock("account:7", app=desk.app):
            pass
    assert order.warned == []
    with lock("account:8", app=desk.app):
        inverse = here()
        with lock("order:2", app=desk.app):
            pass
    # And no more of these two
    for _ in range(3):
        nest(desk, "order:3", "account:9")
        nest(desk, "account:9", "order:3")

    (warning,) = order.warned
    assert warning.startswith(
        f"locks are nested in inverse order: 'order:*' inside 'account:*' at {inverse}, and "
        f"'account:*' inside 'order:*' at {place}."
    )
    assert logged(caplog) == [(logging.WARNING, warning)]


def test_the_lock_of_a_task_is_known_by_its_template_and_stays_held_in_its_body(
    desk: Desk, order: LockOrder
) -> None:
    @desk.locked("tenant:{name}", name="bill", parents="region:{name}")
    def bill(name: str) -> None:
        nest(desk, "report")

    bill.delay("acme")
    desk.deliver()
    nest(desk, "report", "tenant:zoo")
    nest(desk, "report", "region:zoo")

    assert [re.findall(r"'([^']*)' inside", each)[0] for each in order.warned] == [
        "tenant:*",
        "region:*",
    ]


def test_two_keys_that_look_alike_are_to_be_nested_as_one_lock_would_ask_for_them(
    desk: Desk, order: LockOrder
) -> None:
    nest(desk, "account:1", "account:2")
    nest(desk, "account:3", "account:4")
    assert order.warned == []

    nest(desk, "account:2", "account:1")

    (warning,) = order.warned
    assert "'account:* (the lesser key)' inside 'account:* (the greater key)' at" in warning


def test_a_circle_of_three_is_found_and_told_as_a_whole(desk: Desk, order: LockOrder) -> None:
    nest(desk, "a", "b")
    nest(desk, "b", "c")
    nest(desk, "b", "d")
    assert order.warned == []

    nest(desk, "c", "a")

    (warning,) = order.warned
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

    assert order.warned == []


def test_a_coroutine_is_told_of_its_own_line(desk: Desk, order: LockOrder) -> None:
    async def nested() -> str:
        async with lock("b", app=desk.app):
            place = here()
            async with lock("a", app=desk.app):
                return place

    nest(desk, "a", "b")
    place = asyncio.run(nested())

    (warning,) = order.warned
    assert f"'a' inside 'b' at {place}, and" in warning


def test_so_many_orders_are_kept(desk: Desk, order: LockOrder) -> None:
    for number in range(MOST):
        order.asked(desk.app, ["order"], [f"{number:b}".translate({48: "a", 49: "b"})])
    order.asked(desk.app, ["one"], ["order"])
    order.asked(desk.app, ["order"], ["one"])
    assert order.warned == []


def test_no_more_are_kept_and_a_long_circle_is_warned_of_all_the_same(desk: Desk) -> None:
    names = ["".join(letters) for letters in itertools.product(string.ascii_letters, repeat=3)]
    crowd, chain = LockOrder(), LockOrder()
    # Each outside the same one
    for name in names[: 2 * MOST]:
        crowd.asked(desk.app, [f"user:{name}"], ["audit"])
    assert len(crowd._inside) == MOST
    # Hand over hand, each new one around those before, and the last around the first
    ring = names[: MOST - 1]
    for inner, outer in itertools.pairwise(ring):
        chain.asked(desk.app, [outer], [inner])
    chain.asked(desk.app, [ring[0]], [ring[-1]])
    assert len(chain.warned) == 1
    assert chain.warned[0].count(" inside ") == len(ring)


def test_it_is_watched_where_the_setting_says_so_and_nowhere_else(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    nest(desk, "a", "b")
    nest(desk, "b", "a")
    assert desk.app not in lock_order._watched
    desk.app.conf.dlock_check_lock_order = True
    forget(desk.app)

    nest(desk, "a", "b")
    nest(desk, "b", "a")

    assert len(logged(caplog)) == 1


def test_a_test_fails_that_nests_two_locks_otherwise_than_one_before(desk: Desk) -> None:
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
