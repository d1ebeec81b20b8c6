"""A shop in a SQLite file with the tables of the fence: what tests of the fence by itself need."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from celery_dlock import fencing

ORDER = "order:42"


Connect = Callable[..., sqlite3.Connection]


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    """Open connections to one database that has the tables and an order without a cent."""
    opened: list[sqlite3.Connection] = []

    def connect(**options: Any) -> sqlite3.Connection:
        db: sqlite3.Connection = sqlite3.connect(tmp_path / "shop.db", timeout=0.05, **options)
        opened.append(db)
        return db

    with closing(connect()) as db, db:
        db.execute("PRAGMA journal_mode = WAL")
        fencing.create_table(db)
        db.execute("CREATE TABLE orders (id TEXT PRIMARY KEY, paid INTEGER)")
        db.execute("INSERT INTO orders VALUES (?, 0)", (ORDER,))
    yield connect
    for db in opened:
        db.close()


@pytest.fixture
def db(connect: Connect) -> sqlite3.Connection:
    return connect()


def admit(db: sqlite3.Connection, token: Any, owner: Any = "a", resource: Any = ORDER) -> None:
    fencing.admit(db, resource=resource, fencing_token=token, owner=owner)


def pay(db: sqlite3.Connection, token: int, owner: str = "a", amount: int = 1) -> None:
    with db:
        admit(db, token, owner)
        db.execute("UPDATE orders SET paid = paid + ? WHERE id = ?", (amount, ORDER))


def paid(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT paid FROM orders").fetchone()[0])


def fence(db: sqlite3.Connection) -> dict[str, tuple[int, str]]:
    rows = db.execute("SELECT resource, token, owner FROM dlock_fence")
    return {resource: (token, owner) for resource, token, owner in rows}
