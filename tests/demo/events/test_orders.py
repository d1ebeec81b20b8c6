from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from itertools import permutations
from pathlib import Path

import pytest

from example_project.events import orders

EVENTS = [(1, "created", 0), (2, "paid", 500), (3, "refunded", -200)]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    file = tmp_path / "orders.db"
    orders.create(file)
    return file


def found(database: Path) -> list[tuple[int, str, int, int, int]]:
    with closing(sqlite3.connect(database)) as db:
        return list(db.execute("SELECT order_id, state, latest, events, balance FROM orders"))


@pytest.mark.parametrize("events", list(permutations(EVENTS)))
def test_events_of_an_order_come_to_the_same_in_any_order(
    database: Path, events: Sequence[tuple[int, str, int]]
) -> None:
    for sequence, kind, amount in events:
        with orders.transaction(database) as db:
            orders.apply(db, 1001, sequence, kind, amount)
    assert found(database) == [(1001, "refunded", 3, 3, 300)]


def test_making_it_again_keeps_what_is_there(database: Path) -> None:
    with orders.transaction(database) as db:
        orders.apply(db, 1001, 1, "created", 0)
    orders.create(database)
    assert len(found(database)) == 1
