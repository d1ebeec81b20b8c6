"""The protected resource: payments in an SQLite file, written behind the fence."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from celery_dlock import Lease, fencing


class Effects:
    """``pay`` is fenced and happens once an effect id; what was written can be read back."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "shop.db"

    def create(self) -> None:
        with self._transaction() as connection:
            fencing.create_table(connection)
            connection.execute("CREATE TABLE payments (effect TEXT, resource TEXT, token INTEGER)")

    def pay(self, lease: Lease, effect: str) -> bool:
        """Whether this call made the payment; raises ``StaleFencingToken`` to who is too late."""
        with self._transaction() as connection:
            fencing.admit(connection, lease)
            new = fencing.once(connection, effect, lease)
            if new:
                row = (effect, lease.key, lease.fencing_token)
                connection.execute("INSERT INTO payments VALUES (?, ?, ?)", row)
            return new

    def payments(self) -> list[tuple[Any, ...]]:
        """(effect, resource, token) of each."""
        with self._transaction() as connection:
            return connection.execute("SELECT * FROM payments ORDER BY rowid").fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=30, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            with connection:
                yield connection
