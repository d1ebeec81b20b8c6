"""What is done to all sides alike: one worker is stopped, one is killed, all is said twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from sqlalchemy import func, select

from example_project import journal
from example_project.command import Failed
from example_project.compare.gates import Gates
from example_project.shop import orders
from example_project.shop.models import Order, Transaction
from example_project.workers import Worker

DEADLINE = 120.0
PATIENCE = 3.0  # seconds until what is still open is published again


class Scenes:
    """One side: *tasks* is its module, *alone* says that its tasks keep each other out."""

    def __init__(
        self,
        folder: Path,
        crew: Sequence[Worker],
        tasks: ModuleType,
        say: Callable[[str], None],
        check: Callable[[], None],
        *,
        alone: bool,
    ) -> None:
        self._folder = folder
        self._crew = {worker.group: worker for worker in crew}
        self._tasks = tasks
        self._say = say
        self._check = check
        self._alone = alone
        self._gates = Gates(folder)
        self._until_then = time.monotonic() + DEADLINE

    def rush(self, sku: str, customers: int) -> None:
        """More orders than items come at once; one worker is stopped in the middle of an order."""
        self._gates.close()
        for _ in range(customers):
            orders.publish(self._tasks.reserve, orders.place(sku))
        self._until(lambda: len(self._gates.standing("reserve")) + self._parked() >= customers)
        worker = self._crew[self._gates.standing("reserve")[0]]
        worker.pause_between_writes(self._folder, self._wait)
        asleep = self._gates.standing("reserve").count(worker.group)
        self._say(f"stopped {worker.name} in the middle of {asleep} of {customers} orders")
        self._until(lambda: set(self._gates.standing("reserve")) > {worker.group})
        self._gates.release(worker.group)
        worker.resume()
        self._say(f"{worker.name} goes on while others are in the middle of theirs")
        self._until(lambda: self._refused() or self._open("new") <= customers - asleep)
        self._gates.open("reserve")
        self._until(lambda: self._open("new") == 0)

    def payday(self) -> None:
        """Every order is charged, and asked to be charged again; one worker is killed meanwhile."""
        due = self._open("reserved")
        self._gather("charge", due)
        self._publish_open()
        self._gather("charge", due if self._alone else 2 * due)
        self._gates.open("charge")
        self._gather("charged", due if self._alone else 2 * due)
        worker = self._crew.pop(self._gates.standing("charged")[0])
        worker.kill()
        self._gates.release(worker.group)
        self._say(f"killed {worker.name} between the provider's answer and the shop's write")
        self._gates.open("charged")
        self._settle(lambda: self._open("reserved") == 0)

    def midnight(self, day: str, schedulers: int) -> None:
        """Several schedulers ask for the report of the same day."""
        for _ in range(schedulers):
            self._tasks.report.delay(day)
        self._gather("report", 1 if self._alone else schedulers)
        self._gates.open("report")
        self._until(lambda: not any((self._folder / "broker" / "messages").iterdir()))
        self._say(f"{schedulers} schedulers have asked for the report")

    def close(self) -> None:
        """Every worker ends what it has begun."""
        for worker in self._crew.values():
            worker.ask_to_stop()
        for worker in self._crew.values():
            while worker.process.poll() is None:
                self._wait(0.02)

    def _gather(self, gate: str, count: int) -> None:
        """Everybody who can come to *gate* stands there."""
        self._until(lambda: len(self._gates.standing(gate)) >= count)

    def _settle(self, reached: Callable[[], bool]) -> None:
        """A worker that is dead has taken messages with it: what is still open is sent again."""
        sent = time.monotonic()

        def settled() -> bool:
            nonlocal sent
            if reached():
                return True
            if time.monotonic() - sent > PATIENCE:
                self._publish_open()
                sent = time.monotonic()
            return False

        self._until(settled)

    def _publish_open(self) -> None:
        orders.publish_open(self._tasks.reserve, self._tasks.charge)

    def _open(self, state: str) -> int:
        with Transaction() as db:
            number = select(func.count()).select_from(Order).where(Order.state == state)
            return db.scalars(number).one()

    def _parked(self) -> int:
        parked = (e for e in journal.read(self._folder) if e["event"] == "Parked")
        return len({entry["subject"]["task_id"] for entry in parked})

    def _refused(self) -> bool:
        return any(entry["event"] == "StaleRejected" for entry in journal.read(self._folder))

    def _until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            self._wait(0.05)

    def _wait(self, seconds: float) -> None:
        self._check()
        for worker in self._crew.values():
            if worker.process.poll() not in (None, 0):
                raise Failed(f"{worker.name} has ended by itself:\n{worker.last_words()}")
        if time.monotonic() > self._until_then:
            raise Failed(f"it was not done after {DEADLINE:.0f} s")
        time.sleep(seconds)
