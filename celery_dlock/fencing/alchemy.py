"""The fence through SQLAlchemy 2: a ``Connection``, a ``Session`` or a ``scoped_session``.

By the name of the dialect, whatever the driver. A session is asked for its connection, which
begins its transaction; nothing that waits in it is flushed before the fence is passed.
"""

from __future__ import annotations

from typing import Any

from celery_dlock.errors import ConfigurationError
from celery_dlock.fencing.guard import Guard, Values, is_a
from celery_dlock.fencing.mysql import PyMySQLGuard
from celery_dlock.fencing.postgresql import PsycopgGuard
from celery_dlock.fencing.sqlite import SQLiteGuard
from celery_dlock.fencing.statements import dialect

CONNECTION = "sqlalchemy.engine.base.Connection"
SESSIONS = ("sqlalchemy.orm.session.Session", "sqlalchemy.orm.scoping.scoped_session")


class SQLAlchemyGuard(Guard):
    """The guard for ``Connection``, ``Session`` and ``scoped_session``."""

    @classmethod
    def accepts(cls, connection: Any) -> bool:
        return is_a(connection, CONNECTION, *SESSIONS)

    def __init__(self, connection: Any) -> None:
        if is_a(connection, *SESSIONS):
            connection = connection.connection()
        self.dialect = dialect(connection.dialect.name)
        self._connection = connection

    def require_transaction(self) -> None:
        connection = self._connection
        if not connection.in_transaction():
            connection.begin()  # as the first statement would
        if self._commits_by_itself():
            raise ConfigurationError(
                "the connection has isolation_level='AUTOCOMMIT': take one without it, begin a "
                "transaction, and commit after the write that is fenced"
            )

    def execute(self, statement: str, values: Values) -> Any:
        from sqlalchemy import text

        return self._connection.execute(text(statement), values)

    def _commits_by_itself(self) -> bool:
        """Ask the driver's connection: the option may have been given to the engine."""
        pooled = self._connection.connection
        for guard in (SQLiteGuard, PsycopgGuard, PyMySQLGuard):
            if guard.accepts(pooled.dbapi_connection):
                try:
                    guard(pooled.dbapi_connection).require_transaction()
                except ConfigurationError:
                    return True
                return False
        return _is_set_to_autocommit(self._connection) and not getattr(
            pooled.driver_connection, "in_transaction", False
        )


def _is_set_to_autocommit(connection: Any) -> bool:
    try:
        return bool(connection.dialect.detect_autocommit_setting(connection.connection))
    except (AttributeError, NotImplementedError):  # before SQLAlchemy 2.0.43
        options = connection.get_execution_options()
        told = options.get("isolation_level") == "AUTOCOMMIT"
        return told or getattr(connection.connection, "autocommit", None) is True
