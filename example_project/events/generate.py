"""Makes ``events.csv``: 500 events of 40 orders, a few of them hot, the same on every machine.

Run ``python -m example_project.events.generate`` after changing it.
"""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

SEED = 20_261_120
ORDERS = range(1001, 1041)
HOT = (1003, 1007, 1019, 1028)
EVENTS = 500
FILE = Path(__file__).with_name("events.csv")


@dataclass(frozen=True, slots=True)
class OrderEvent:
    """The *sequence*-th event of an order; *amount* is in cents, negative when money goes back."""

    event_id: str
    order_id: int
    sequence: int
    kind: str
    amount: int


def generate(seed: int = SEED) -> list[OrderEvent]:
    """All events, in the order in which the shop hears of them."""
    uniform = random.Random(seed).random  # the one method that is the same in all versions

    def below(n: int) -> int:
        return int(uniform() * n)

    lives = {order_id: _life(order_id, below) for order_id in ORDERS}
    events: list[OrderEvent] = []
    while len(events) < EVENTS:
        order_id = HOT[below(len(HOT))] if uniform() < 0.4 else ORDERS[below(len(ORDERS))]
        events.append(next(lives[order_id]))
    return events


def _life(order_id: int, below: Callable[[int], int]) -> Iterator[OrderEvent]:
    for sequence, (kind, amount) in enumerate(_steps(below), start=1):
        yield OrderEvent(f"{order_id}-{sequence:03}", order_id, sequence, kind, amount)


def _steps(below: Callable[[int], int]) -> Iterator[tuple[str, int]]:
    """An order is placed, and then delivery follows delivery; now and then one is called off."""
    yield "created", 0
    while True:
        price = 100 + below(20_000)
        yield "paid", price
        if below(5) == 0:
            yield "cancelled", 0
            yield "refunded", -price
        else:
            yield "picked", 0
            yield "shipped", 0
            if below(6) == 0:
                yield "returned", 0
                yield "refunded", -price


def as_csv(events: list[OrderEvent]) -> str:
    """*events* as the text of the file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(field.name for field in fields(OrderEvent))
    writer.writerows(astuple(event) for event in events)
    return text.getvalue()


def read(file: Path = FILE) -> list[OrderEvent]:
    """The events of *file*."""
    with file.open(newline="") as lines:
        return [
            OrderEvent(
                row["event_id"],
                int(row["order_id"]),
                int(row["sequence"]),
                row["kind"],
                int(row["amount"]),
            )
            for row in csv.DictReader(lines)
        ]


if __name__ == "__main__":
    FILE.write_text(as_csv(generate()))
