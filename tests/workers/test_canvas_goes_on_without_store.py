"""A canvas goes on to a task that is ordered as published, while the store does not answer."""

# mypy: allow-untyped-calls

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from celery import chain, chord, group

from celery_dlock import BackendUnavailable, LockedTask, Queue
from celery_dlock.core.state import WaitMode
from celery_dlock.publishing import ordered
from celery_dlock.runtime import runtime
from tests.services.desk import Desk
from tests.services.trouble import Trouble
from tests.workers.conftest import nothing_is_left

MakeOrdered = Callable[..., LockedTask]


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    told: set[str] = set()
    monkeypatch.setattr(ordered, "_gone_by_broker", told, raising=False)
    return told


@pytest.fixture
def away(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Trouble:
    """The store keeps nothing and gives no locks."""
    trouble = Trouble(monkeypatch)
    runtime(desk.app)
    trouble.beset(runtime(desk.app).backend)
    trouble.keeps = trouble.answers = False
    return trouble


@pytest.fixture
def plain(desk: Desk) -> Any:
    @desk.app.task(name="plain")
    def plain(number: int) -> int:
        return number

    return plain


CANVASES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "chain": lambda plain, charge, total: chain(plain.si(0), charge.si("42", 1)),
    "link": lambda plain, charge, total: plain.si(0).set(link=charge.si("42", 1)),
    "chain to a group": lambda plain, charge, total: chain(
        plain.si(0), group(charge.si("42", 1), charge.si("42", 1))
    ),
    "chord": lambda plain, charge, total: chord([plain.si(1), plain.si(2)], total.s("42")),
    "chord in a group": lambda plain, charge, total: group(
        chord([plain.si(1), plain.si(2)], total.s("42")), plain.si(0)
    ),
}


@pytest.mark.parametrize("canvas", CANVASES)
def test_it_goes_on_by_the_broker_and_nothing_fails(
    desk: Desk,
    make_ordered: MakeOrdered,
    plain: Any,
    away: Trouble,
    ran: list[Any],
    canvas: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    charge = make_ordered()

    @desk.locked("order:{order}", name="total", on_contention=Queue(ordered="publish"))
    def total(numbers: list[int], order: str) -> None:
        ran.append(sum(numbers))

    with caplog.at_level(logging.WARNING, "celery_dlock"):
        CANVASES[canvas](plain, charge, total).apply_async()
        before = [
            desk.deliver() for _ in range(3 if "in a group" in canvas else 1 + ("chord" in canvas))
        ]
    states = [desk.result(message.headers["id"]).state for message in before]
    assert states == ["SUCCESS"] * len(before)
    expected = 2 if canvas == "chain to a group" else 1
    assert desk.size() == expected
    assert sum("is ordered by its arrival" in line for line in caplog.messages) == 1

    # And the store is asked for their locks by the worker that gets them
    away.over()
    desk.deliver_all()
    assert ran == ([3] if "chord" in canvas else [1] * expected)
    assert nothing_is_left(desk)


def test_who_publishes_by_itself_is_told(
    desk: Desk, make_ordered: MakeOrdered, away: Trouble
) -> None:
    charge = make_ordered()

    with pytest.raises(BackendUnavailable):
        charge.delay("42", 1)
    with pytest.raises(BackendUnavailable):
        chain(charge.si("42", 1), charge.si("42", 2)).apply_async()
    assert desk.size() == 0


def test_a_body_that_publishes_by_itself_is_told(
    desk: Desk, make_ordered: MakeOrdered, away: Trouble
) -> None:
    charge = make_ordered()
    told: list[Exception] = []

    @desk.app.task(name="relay")
    def relay() -> None:
        for task_id in (None, "mine"):
            try:
                charge.apply_async(("42", 1), task_id=task_id)
            except BackendUnavailable as exc:
                told.append(exc)

    relay.delay()
    desk.deliver()
    assert len(told) == 2
    assert desk.size() == 0


def test_what_the_store_has_heard_of_all_the_same_runs_once(
    desk: Desk,
    make_ordered: MakeOrdered,
    plain: Any,
    ran: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    charge = make_ordered()
    backend = runtime(desk.app).backend
    enter = backend.enter

    def unheard(claim: Any, message: bytes | None = None) -> Any:
        reply = enter(claim, message)
        if claim.wait is WaitMode.ENQUEUE:
            raise BackendUnavailable("the answer was lost")
        return reply

    monkeypatch.setattr(backend, "enter", unheard)
    result = chain(plain.si(0), charge.si("42", 1)).apply_async()
    desk.deliver_all()
    assert result.get() == 1
    assert ran == [1]
    assert nothing_is_left(desk)
