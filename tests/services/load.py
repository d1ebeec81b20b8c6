"""Work that goes on while workers come and go, and what must be true of it afterwards."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from celery.result import AsyncResult

from celery_dlock.core.state import KeyState
from celery_dlock.runtime import runtime
from tests.services.effects import Effects
from tests.services.lab import Lab
from tests.services.until import until

#: Seconds between two messages of the load.
PACE = 0.1


def backlog(lab: Lab, orders: Sequence[str], running: int, waiting: int) -> list[AsyncResult]:
    """Have each order in work *running* times, until the test says so, and *waiting* behind it."""
    pay = lab.app.tasks["pay"]
    sent = [pay.delay(order, hold="first") for order in orders for _ in range(running)]
    lab.journal.wait_for("start", len(sent))
    sent += [pay.delay(order) for order in orders for _ in range(waiting)]
    until("they wait", lambda: all(len(state(lab, o).waiting) == waiting for o in orders))
    return sent


@contextmanager
def load(lab: Lab, orders: Sequence[str], task: str = "pay") -> Iterator[list[AsyncResult]]:
    """Publish *task* for *orders*, in turns, for as long as the block runs."""
    sent: list[AsyncResult] = []
    over = threading.Event()

    def publish() -> None:
        while not over.wait(PACE):
            sent.append(lab.app.send_task(task, (orders[len(sent) % len(orders)],)))

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield sent
    finally:
        over.set()
        thread.join()


def state(lab: Lab, order: str, template: str = "order:{}") -> KeyState:
    return runtime(lab.app).backend.peek(template.format(order))


def nothing_is_left(lab: Lab, orders: Iterable[str], template: str = "order:{}") -> None:
    """Wait until nobody holds, waits for or was called to the key of any of *orders*."""
    until(
        lambda: f"nothing is left, there is {[state(lab, order, template) for order in orders]}",
        lambda: all(state(lab, order, template) == KeyState() for order in orders),
    )


def all_have_ended(results: Iterable[AsyncResult], timeout: float = 60.0) -> None:
    waiting = list(results)

    def none_is_left() -> bool:
        waiting[:] = [result for result in waiting if not result.ready()]
        return not waiting

    until(f"{len(waiting)} have ended", none_is_left, timeout)


def paid_once(effects: Effects, results: Iterable[AsyncResult]) -> bool:
    """Whether each of *results* was paid, and nothing else, and nothing twice."""
    return Counter(row[0] for row in effects.payments()) == Counter(r.id for r in results)


@dataclass(frozen=True, slots=True)
class Body:
    """One run of a body, from what it noted: its order, its process, and from when until when."""

    order: str
    pid: int
    began: float
    ended: float


def bodies(lab: Lab) -> list[Body]:
    """All that have run to their end."""
    starts = {(e["id"], e["pid"]): e["at"] for e in lab.journal.read("start")}
    return [
        Body(e["order"], e["pid"], starts[e["id"], e["pid"]], e["at"])
        for e in lab.journal.read("end")
    ]


def most_at_once(ran: Iterable[Body]) -> int:
    """How many of them ran for one order at the same time."""
    ran = list(ran)
    return max(
        sum(other.order == body.order and other.began <= body.began < other.ended for other in ran)
        for body in ran
    )
