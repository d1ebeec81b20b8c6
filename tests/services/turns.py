"""Orders whose messages wait for each other: hold them up, and look at how it went."""

from __future__ import annotations

from typing import Any

from celery.result import AsyncResult

from celery_dlock.runtime import runtime
from tests.services.brokers import left
from tests.services.lab import Lab
from tests.services.until import until


def held(lab: Lab, *orders: str) -> None:
    """Start a body on each of *orders* that holds its key until the test lets the first go."""
    for order in orders:
        lab.app.tasks["apply"].delay(order, 0, hold=orders[0])
        lab.journal.wait_for("start", order=order, number=0)


def parked(lab: Lab, order: str, count: int) -> None:
    """Wait until so many messages wait for *order* in the store."""
    backend = runtime(lab.app).backend
    until(f"{count} are parked", lambda: backend.peek(f"order:{order}").parked == count)


def done(results: list[AsyncResult]) -> list[Any]:
    return [result.get(timeout=60, interval=0.05) for result in results]


def numbers(lab: Lab, order: str) -> list[int]:
    """In the order in which they ran; never two at once, with tokens that grow."""
    entries = lab.journal.read(order=order)
    assert [entry["what"] for entry in entries] == ["start", "end"] * (len(entries) // 2)
    tokens = [entry["token"] for entry in entries[::2]]
    assert tokens == sorted(set(tokens))
    return [entry["number"] for entry in entries[::2]]


def nothing_is_left(lab: Lab, *orders: str) -> None:
    """Wait for it: a task leaves after its result is there, and is acknowledged after that."""
    for order in orders:
        freed(lab, order)
    until("the broker is empty", lambda: left(lab.app) == 0)


def freed(lab: Lab, order: str) -> None:
    """Wait until nobody holds *order* or waits for it: only then has its last task ended."""
    backend = runtime(lab.app).backend

    def is_free() -> bool:
        state = backend.peek(f"order:{order}")
        return not (state.holders or state.waiting or state.grants)

    until(f"{order} is free", is_free)
