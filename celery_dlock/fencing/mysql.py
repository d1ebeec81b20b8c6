"""The fence in MySQL and MariaDB: a connection of PyMySQL.

In autocommit mode the caller must have said BEGIN. The server tells with each reply whether a
transaction is open.
"""

from __future__ import annotations

from typing import Any

from celery_dlock.errors import ConfigurationError
from celery_dlock.fencing.guard import Guard, Values, is_a, pyformat
from celery_dlock.fencing.statements import MYSQL

IN_TRANSACTION = 1


class PyMySQLGuard(Guard):
    """The guard for ``pymysql.connections.Connection``."""

    dialect = MYSQL

    @classmethod
    def accepts(cls, connection: Any) -> bool:
        return is_a(connection, "pymysql.connections.Connection")

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def require_transaction(self) -> None:
        connection = self._connection
        if connection.get_autocommit() and not connection.server_status & IN_TRANSACTION:
            raise ConfigurationError(
                "the connection is in autocommit mode and no transaction is open: call "
                "connection.begin() before fencing, and commit after the write that is fenced"
            )

    def execute(self, statement: str, values: Values) -> Any:
        from pymysql.cursors import Cursor

        cursor = self._connection.cursor(Cursor)  # whatever class of cursors the caller has set
        cursor.execute(pyformat(statement), values)
        return cursor
