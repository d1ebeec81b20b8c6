"""The fence in SQLite: a connection of the standard library's ``sqlite3``.

SQLite has one writer at a time, so the upsert also holds off every other writer until the
transaction ends. ``sqlite3`` opens a transaction by itself before the first write, unless it was
told not to; then the caller must have said BEGIN.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from celery_dlock.errors import ConfigurationError
from celery_dlock.fencing.guard import FENCE_TABLE, ONCE_TABLE, Guard

RAISE = f"""
INSERT INTO {FENCE_TABLE} (resource, token, owner) VALUES (?, ?, ?)
ON CONFLICT (resource) DO UPDATE SET token = excluded.token, owner = excluded.owner
WHERE {FENCE_TABLE}.token < excluded.token
   OR ({FENCE_TABLE}.token = excluded.token AND {FENCE_TABLE}.owner = excluded.owner)
"""
SEEN = f"SELECT token FROM {FENCE_TABLE} WHERE resource = ?"
CLAIM = f"INSERT INTO {ONCE_TABLE} (effect_id) VALUES (?) ON CONFLICT (effect_id) DO NOTHING"

#: ``sqlite3.LEGACY_TRANSACTION_CONTROL``, the only mode before Python 3.12.
LEGACY = -1


class SQLiteGuard(Guard):
    """The guard for ``sqlite3.Connection``."""

    schema: ClassVar[tuple[str, ...]] = (
        f"CREATE TABLE IF NOT EXISTS {FENCE_TABLE} ("
        "resource TEXT NOT NULL PRIMARY KEY, token INTEGER NOT NULL, owner TEXT NOT NULL)",
        f"CREATE TABLE IF NOT EXISTS {ONCE_TABLE} ("
        "effect_id TEXT NOT NULL PRIMARY KEY, "
        "claimed_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP)",
    )

    @classmethod
    def accepts(cls, connection: Any) -> bool:
        return isinstance(connection, sqlite3.Connection)

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def require_transaction(self) -> None:
        connection = self._connection
        legacy = getattr(connection, "autocommit", LEGACY) == LEGACY
        begins_by_itself = legacy and connection.isolation_level is not None
        if not (connection.in_transaction or begins_by_itself):
            raise ConfigurationError(
                "the connection is in autocommit mode and no transaction is open: execute BEGIN "
                "IMMEDIATE before fencing, and commit after the write that is fenced"
            )

    def raise_to(self, resource: str, token: int, owner: str) -> bool:
        return self._execute(RAISE, resource, token, owner).rowcount == 1

    def seen(self, resource: str) -> int | None:
        row = self._execute(SEEN, resource).fetchone()
        return None if row is None else int(row[0])

    def claim(self, effect_id: str) -> bool:
        return self._execute(CLAIM, effect_id).rowcount == 1

    def create_tables(self) -> None:
        for statement in self.schema:
            self._execute(statement)

    def _execute(self, statement: str, *values: str | int) -> sqlite3.Cursor:
        cursor = self._connection.cursor()
        cursor.row_factory = None  # the caller's may return anything
        with _missing_table(self.schema):
            return cursor.execute(statement, values)


@contextmanager
def _missing_table(schema: tuple[str, ...]) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as exc:
        if not str(exc).startswith(("no such table: dlock_", "no such table: main.dlock_")):
            raise
        raise ConfigurationError(
            f"{exc}: call celery_dlock.fencing.create_table(connection) once, or add to your "
            f"migrations: {'; '.join(schema)}"
        ) from exc
