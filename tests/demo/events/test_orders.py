from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from itertools import permutations
from pathlib import Path

import pytest

from celery_dlock import fencing
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


def write_and_fail(database: Path) -> None:
    with orders.transaction(database) as db:
        fencing.admit(db, resource="order:1001", fencing_token=7, owner="a")
        assert fencing.once(db, "1001-001", resource="shop")
        orders.apply(db, 1001, 1, "created", 0)
        raise ZeroDivisionError


def test_an_exception_takes_back_the_whole_transaction(database: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        write_and_fail(database)
    assert found(database) == []
    with orders.transaction(database) as db:
        fencing.admit(db, resource="order:1001", fencing_token=1, owner="b")
        assert fencing.once(db, "1001-001", resource="shop")
