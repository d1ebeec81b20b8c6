from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from example_project.events import orders
from example_project.events.generate import OrderEvent
from example_project.events.orders import Run
from example_project.events.relay import Relay

EVENTS = [OrderEvent(f"7-{n:03}", 7, n, "paid", 100) for n in range(1, 7)]


class Bench:
    """A relay over a real database, with a clock in hand and a list for a broker."""

    def __init__(self, database: Path) -> None:
        self.now = 100.0
        self.sent: list[str] = []
        self.database = database
        orders.create(database)
        self.relay = Relay(
            EVENTS,
            database,
            lambda event: self.sent.append(event.event_id),
            window=3,
            patience=4.0,
            clock=lambda: self.now,
        )

    def note(self, *event_ids: str, applied: bool = True) -> None:
        with orders.transaction(self.database) as db:
            for event_id in event_ids:
                orders.log(db, Run(event_id, 7, 1, os.getpid(), True, applied, 0.0, 1.0))

    def tick(self) -> Sequence[str]:
        """What one look at the database has it publish."""
        self.sent.clear()
        self.relay.tick()
        return list(self.sent)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "orders.db")


def test_it_publishes_in_order_and_no_more_than_its_window(bench: Bench) -> None:
    assert bench.tick() == ["7-001", "7-002", "7-003"]
    assert bench.tick() == []
    assert [event.event_id for event in bench.relay.upcoming] == ["7-004", "7-005", "7-006"]


def test_what_was_applied_makes_room(bench: Bench) -> None:
    bench.tick()
    bench.note("7-002")
    assert bench.tick() == ["7-004"]
    assert bench.relay.applied == 1


def test_what_is_not_applied_in_time_is_published_again_under_its_id(bench: Bench) -> None:
    bench.tick()
    bench.note("7-001")
    bench.now += 3.9
    assert bench.tick() == ["7-004"]
    bench.now += 0.1
    assert bench.tick() == ["7-002", "7-003"]
    assert bench.tick() == []
    assert bench.relay.repeated == 2
    bench.now += 4.0
    assert bench.tick() == ["7-002", "7-003", "7-004"]


def test_a_run_that_applied_nothing_does_not_count(bench: Bench) -> None:
    bench.tick()
    bench.note("7-001", applied=False)
    bench.now += 4.0
    assert "7-001" in bench.tick()


def test_at_the_end_nothing_is_published(bench: Bench) -> None:
    bench.tick()
    bench.note(*(event.event_id for event in EVENTS))
    bench.tick()
    bench.now += 100
    assert bench.tick() == []
    assert bench.relay.applied == len(EVENTS)
    assert not bench.relay.upcoming
