"""The fence in PostgreSQL: a connection of psycopg 3.

psycopg opens a transaction by itself before the first statement, unless it is in autocommit mode;
then the caller must have opened one, with ``with connection.transaction():``.
"""

from __future__ import annotations

from typing import Any

from celery_dlock.errors import ConfigurationError
from celery_dlock.fencing.guard import Guard, Values, is_a, pyformat
from celery_dlock.fencing.statements import POSTGRESQL

IDLE, ACTIVE = 0, 1


class PsycopgGuard(Guard):
    """The guard for ``psycopg.Connection``."""

    dialect = POSTGRESQL

    @classmethod
    def accepts(cls, connection: Any) -> bool:
        return is_a(connection, "psycopg.Connection")

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def require_transaction(self) -> None:
        connection = self._connection
        if connection.info.transaction_status == ACTIVE:  # it does not know before it has asked
            with connection.pipeline():
                pass
        if connection.autocommit and connection.info.transaction_status == IDLE:
            raise ConfigurationError(
                "the connection is in autocommit mode and no transaction is open: put the fence "
                "and the write that is fenced into one `with connection.transaction():`"
            )

    def execute(self, statement: str, values: Values) -> Any:
        from psycopg import Cursor
        from psycopg.rows import tuple_row

        query: Any = pyformat(statement)  # no LiteralString, which psycopg would have
        # Whatever factories of cursors and rows the caller has set
        return Cursor(self._connection, row_factory=tuple_row).execute(query, values)
