"""The checker is checked: histories that have an order, and histories that have none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from celery_dlock.core.operations import Enter, Leave, Operation, Renew
from celery_dlock.core.state import (
    Busy,
    Claim,
    Drop,
    Left,
    NotHeld,
    Outcome,
    Park,
    Reason,
    Renewed,
    Run,
    WaitMode,
)
from celery_dlock.stores.base import Wake
from tests.linearizability import checker
from tests.linearizability.checker import Call, TooManyStates, unexplained
from tests.linearizability.specification import Asked, Heard, Known

#: A register that is written and read: what is read is what stands there.
Effects = Callable[[int], Iterator[int]]


def writes(value: int, was: int) -> Iterator[int]:
    yield value


def reads(value: int, was: int) -> Iterator[int]:
    if was == value:
        yield was


def write(value: int, called: int, answered: int | None) -> Call[int]:
    return Call(partial(writes, value), called, answered)


def read(value: int, called: int, answered: int | None) -> Call[int]:
    return Call(partial(reads, value), called, answered)


@pytest.mark.parametrize(
    "calls",
    [
        [write(1, 0, 1), read(1, 2, 3)],
        [write(1, 0, 9), read(0, 1, 2), read(1, 3, 4)],
        [write(1, 0, 9), write(2, 0, 9), read(2, 1, 2), read(1, 3, 4)],
        [write(1, 0, None), read(0, 5, 6), read(1, 7, 8)],
        [write(1, 0, None), read(0, 5, 6)],
        [write(1, 0, 2), read(0, 2, 3)],
    ],
    ids=["one after the other", "at once", "two", "late", "never", "at the same instant"],
)
def test_what_has_an_order_is_explained(calls: list[Call[int]]) -> None:
    assert unexplained(calls, 0) is None


@pytest.mark.parametrize(
    ("calls", "place"),
    [
        ([write(1, 0, 1), read(0, 2, 3)], 1),
        ([write(1, 0, 9), read(1, 1, 2), read(0, 3, 4)], 2),
        ([write(1, 0, 9), write(2, 0, 9), read(2, 1, 2), read(1, 3, 4), read(2, 5, 6)], 4),
        ([read(1, 0, 1), write(1, 2, 3)], 0),
        ([write(1, 0, None), read(1, 5, 6), read(0, 7, 8)], 2),
    ],
    ids=["stale", "back again", "a third time", "of the future", "back to before it was lost"],
)
def test_what_has_none_is_named_by_its_first_answer(calls: list[Call[int]], place: int) -> None:
    assert unexplained(calls, 0) == place


def test_what_has_too_many_orders_is_not_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "MOST_STATES", 500)

    def adds(number: int, was: int) -> Iterator[int]:
        yield was + number

    lost = [Call(partial(adds, 2**place), 0, None) for place in range(10)]
    with pytest.raises(TooManyStates):
        unexplained([*lost, read(-1, 1, 2)], 0)


NOW = 10_000_000


def claim(task: str, **options: Any) -> Claim:
    return Claim("key", task, "1", 9_000_000, wait=WaitMode.QUEUE, **options)


def asked(operation: Operation[Any], *verdict: Any, **options: Any) -> Asked:
    """It was answered with that verdict, and perhaps wakes; or not at all."""
    return Asked(operation, NOW, Heard(*verdict) if verdict else None, **options)


def enter(task: str, *verdict: Any) -> Asked:
    return asked(Enter(claim(task), task.encode()), *verdict)


def leave(task: str, *verdict: Any, **options: Any) -> Asked:
    return asked(Leave(claim(task), Outcome.DONE), *verdict, **options)


def explained(*asks: tuple[Asked, int, int | None]) -> bool:
    return unexplained([Call(*each) for each in asks], Known()) is None


B_IS_WOKEN = (Wake("key", "b", b"b"),)


def test_of_two_that_enter_at_once_either_may_be_first() -> None:
    assert explained((enter("a", Run(0, 5)), 0, 9), (enter("b", Park()), 0, 9))
    assert explained((enter("a", Park()), 0, 9), (enter("b", Run(0, 5)), 0, 9))


@pytest.mark.parametrize(
    "asks",
    [
        [(enter("a", Run(0, 5)), 0, 9), (enter("b", Run(0, 6)), 0, 9)],
        [(enter("a", Run(0, 5)), 0, 1), (enter("b", Busy(None, 0, 0)), 2, 3)],
        [(enter("a", Run(0, 5)), 0, 1), (leave("a", NotHeld()), 2, 3)],
        [
            *((enter("a", Run(0, 5)), 0, 1), (enter("b", Park()), 2, 3)),
            (leave("a", Left(False)), 4, 5),  # and b is not woken
        ],
        [
            *((enter("a", Run(0, 5)), 0, 1), (leave("a", Left(False)), 2, 3)),
            (enter("b", Run(0, 5)), 4, 5),
        ],
    ],
    ids=["two slots", "another verdict", "a release lost", "a wake lost", "a token twice"],
)
def test_what_the_rules_would_not_answer_is_found(asks: list[tuple[Asked, int, int]]) -> None:
    assert not explained(*asks)


def test_a_grant_of_which_nobody_heard_may_have_any_token() -> None:
    assert explained(
        (enter("a"), 0, None),
        (enter("b", Park()), 1, 2),
        (leave("a", Left(False), B_IS_WOKEN), 3, 4),
        (enter("b", Run(0, 7)), 5, 6),
    )


def test_a_release_that_the_driver_has_said_twice_is_answered_as_the_first_time() -> None:
    asks = [(enter("a", Run(0, 5)), 0, 1), (enter("b", Park()), 2, 3), (leave("a"), 4, None)]
    assert explained(*asks, (leave("a", Left(False), B_IS_WOKEN, twice=True), 4, 9))
    assert not explained((leave("a", Left(False)), 0, 1))


def test_what_ends_while_nobody_asks_is_over_at_the_next_call() -> None:
    done = Leave(claim("a", done_ttl=1_000_000), Outcome.DONE)
    known = Known()
    for each in (enter("a", Run(0, 5)), asked(done, Left(True))):
        (known,) = each(known)
    assert list(enter("a", Drop(Reason.DONE))(known))
    later = Asked(Enter(claim("a")), NOW + 1_000_000, Heard(Run(0, 6)))
    assert list(later(known))


def test_by_the_stores_own_clock_instants_do_not_count() -> None:
    (known,) = enter("a", Run(0, 5))(Known())
    renewed = Renew(claim("a"))
    assert list(Asked(renewed, None, Heard(Renewed(77)))(known))
    assert not list(Asked(renewed, NOW, Heard(Renewed(77)))(known))
