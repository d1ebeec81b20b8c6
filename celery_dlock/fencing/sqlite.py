"""The fence in SQLite: a connection of the standard library's ``sqlite3``.

SQLite has one writer at a time, so the upsert also holds off every other writer until the
transaction ends. ``sqlite3`` opens a transaction by itself before the first write, unless it was
told not to; then the caller must have said BEGIN.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from celery_dlock.errors import ConfigurationError
from celery_dlock.fencing.guard import Guard, Values
from celery_dlock.fencing.statements import SQLITE

#: ``sqlite3.LEGACY_TRANSACTION_CONTROL``, the only mode before Python 3.12.
LEGACY = -1


class SQLiteGuard(Guard):
    """The guard for ``sqlite3.Connection``."""

    dialect = SQLITE

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

    def execute(self, statement: str, values: Values) -> sqlite3.Cursor:
        cursor = self._connection.cursor()
        cursor.row_factory = None  # the caller's may return anything
        return cursor.execute(statement, values)
