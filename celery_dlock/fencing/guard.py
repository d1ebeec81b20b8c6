"""What guards the writes of one open connection: of a driver, of SQLAlchemy or of Django.

Everything runs in the transaction that the caller has opened and will commit, because a check
that is not part of the write proves nothing about it. The driver's errors pass through as they
are: the caller's transaction handling knows them. Only a missing table is told apart.

Each kind of connection says how it is recognised, whether a statement would commit by itself, and
how one is executed whatever the caller has set for cursors and rows. A library is imported only
after an object of it was seen, which is recognised by its type's name.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from typing import Any, ClassVar

from celery_dlock.errors import ConfigurationError
from celery_dlock.fencing.statements import (
    FENCE_TABLE,
    MYSQL,
    ONCE_TABLE,
    POSTGRESQL,
    SQLITE,
    Dialect,
    dialect,
)

Values = dict[str, str | int]


class Guard(ABC):
    """The two tables, seen through one open connection."""

    #: The dotted names of the types of connections that it is for.
    kinds: ClassVar[tuple[str, ...]]
    dialect: Dialect

    @classmethod
    def accepts(cls, connection: Any) -> bool:
        """Whether this is the guard for *connection*."""
        return is_a(connection, *cls.kinds)

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @abstractmethod
    def require_transaction(self) -> None:
        """Raise :exc:`~celery_dlock.ConfigurationError` if a statement would commit by itself."""

    @abstractmethod
    def execute(self, statement: str, values: Values) -> Any:
        """The cursor, of rows that are tuples, which has executed *statement*."""

    def raise_to(self, resource: str, token: int, owner: str) -> int | None:
        """Lift *resource* to *token*: ``None``, or the token that is too high for that.

        It passes where the stored token is smaller, or equal with the same owner: one holder
        writes many times, but after a loss of data two holders can have the same token.
        """
        current = self._ask(self.dialect.raise_, token=token, resource=resource, owner=owner)
        return None if current == token else current or token

    def claim(self, resource: str, effect_id: str) -> bool:
        """Note *effect_id* of *resource* as done; ``False`` if it was noted before."""
        answer = self._ask(self.dialect.claim, resource=resource, effect_id=effect_id)
        if answer == 0:
            raise ConfigurationError("the driver does not hand on what LAST_INSERT_ID() was given")
        return bool(answer == 1)

    def mint(self, resource: str, owner: str) -> Any:
        """Count *resource* up for *owner*: its token."""
        return self._ask(self.dialect.mint, resource=resource, owner=owner)

    def create_tables(self) -> None:
        """Make both tables where they are missing."""
        for statement in self.dialect.schema:
            self.execute(statement, {}).close()

    def _ask(self, statement: str, token: int | None = None, **texts: str) -> Any:
        values: Values = {name: self.dialect.text(text) for name, text in texts.items()}
        if token is not None:
            values["token"] = token
        with _missing_table(self.dialect), closing(self.execute(statement, values)) as cursor:
            return self.dialect.answer(cursor)


@contextmanager
def _missing_table(dialect: Dialect) -> Iterator[None]:
    try:
        yield
    except Exception as exc:
        # The libraries around a driver keep its error as the cause.
        for error in (exc, exc.__cause__):
            if error is None or not dialect.is_missing_table(error):
                continue
            if FENCE_TABLE in str(error) or ONCE_TABLE in str(error):
                raise ConfigurationError(
                    f"{error}. Make the tables {FENCE_TABLE} and {ONCE_TABLE}: with Django add "
                    "'celery_dlock.fencing' to INSTALLED_APPS and migrate; with Alembic put "
                    "fencing.create_table(op.get_bind()) into a migration; else call "
                    "celery_dlock.fencing.create_table(connection) once, or execute: "
                    f"{'; '.join(dialect.schema)}"
                ) from exc
        raise


def is_a(connection: Any, *names: str) -> bool:
    """Whether a class of one of these dotted *names* is among those of *connection*'s type."""
    return any(
        f"{kind.__module__}.{kind.__qualname__}" in names for kind in type(connection).__mro__
    )


@cache
def pyformat(statement: str) -> str:
    """*statement* with ``%(resource)s`` in place of ``:resource``."""
    return re.sub(r":(\w+)", r"%(\1)s", statement)


#: ``sqlite3.LEGACY_TRANSACTION_CONTROL``, the only mode before Python 3.12.
LEGACY = -1

#: The states of a transaction in psycopg 2 and 3, and PyMySQL's bit for one that is open.
IDLE, ACTIVE = 0, 1
IN_TRANSACTION = 1

#: What MySQL calls a savepoint that does not exist.
NO_SAVEPOINT = 1305

SESSIONS = ("sqlalchemy.orm.session.Session", "sqlalchemy.orm.scoping.scoped_session")
PROXY = "django.utils.connection.ConnectionProxy"


class SQLiteGuard(Guard):
    """The standard library's.

    SQLite has one writer at a time, so the upsert also holds off every other writer until the
    transaction ends. ``sqlite3`` opens one by itself before the first write, unless it was told
    not to; then the caller must have said BEGIN.
    """

    kinds = ("sqlite3.Connection",)
    dialect = SQLITE

    def require_transaction(self) -> None:
        connection = self._connection
        legacy = getattr(connection, "autocommit", LEGACY) == LEGACY
        begins_by_itself = legacy and connection.isolation_level is not None
        if not (connection.in_transaction or begins_by_itself):
            raise ConfigurationError(
                "the connection is in autocommit mode and no transaction is open: execute BEGIN "
                "IMMEDIATE before fencing, and commit after the write that is fenced"
            )

    def execute(self, statement: str, values: Values) -> Any:
        cursor = self._connection.cursor()
        cursor.row_factory = None  # the caller's may return anything
        return cursor.execute(statement, values)


class PsycopgGuard(Guard):
    """psycopg 3 opens a transaction by itself, unless it is in autocommit mode.

    Then the caller must have opened one, with ``with connection.transaction():``.
    """

    kinds = ("psycopg.Connection",)
    dialect = POSTGRESQL

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


class Psycopg2Guard(Guard):
    """psycopg 2 does as psycopg 3, but for what opens one: ``with connection:``.

    In autocommit mode that shows only after the first statement within.
    """

    kinds = ("psycopg2.extensions.connection",)
    dialect = POSTGRESQL

    def require_transaction(self) -> None:
        connection = self._connection
        if connection.autocommit and connection.get_transaction_status() == IDLE:
            self.execute("SELECT 1", {}).close()
            if connection.get_transaction_status() == IDLE:
                raise ConfigurationError(
                    "the connection is in autocommit mode and no transaction is open: put the "
                    "fence and the write that is fenced into one `with connection:`"
                )

    def execute(self, statement: str, values: Values) -> Any:
        from psycopg2.extensions import cursor as Cursor  # noqa: N812

        cursor = Cursor(self._connection)  # whatever factory of cursors the caller has set
        cursor.execute(pyformat(statement), values)
        return cursor


class PyMySQLGuard(Guard):
    """In autocommit mode the caller must have said BEGIN.

    The server tells with each reply whether a transaction is open.
    """

    kinds = ("pymysql.connections.Connection",)
    dialect = MYSQL

    def require_transaction(self) -> None:
        if self._connection.get_autocommit() and not self._in_transaction():
            raise ConfigurationError(
                "the connection is in autocommit mode and no transaction is open: call "
                "connection.begin() before fencing, and commit after the write that is fenced"
            )

    def execute(self, statement: str, values: Values) -> Any:
        cursor = self._connection.cursor(self._plain())
        cursor.execute(pyformat(statement), values)
        return cursor

    def _in_transaction(self) -> bool:
        return bool(self._connection.server_status & IN_TRANSACTION)

    def _plain(self) -> Any:
        """The class of cursors with tuples, whatever the caller has set."""
        from pymysql.cursors import Cursor

        return Cursor


class MySQLdbGuard(PyMySQLGuard):
    """mysqlclient keeps that to itself. But outside of a transaction no savepoint is kept."""

    kinds = ("MySQLdb.connections.Connection",)

    def _in_transaction(self) -> bool:
        self.execute("SAVEPOINT dlock_fence", {}).close()
        try:
            self.execute("RELEASE SAVEPOINT dlock_fence", {}).close()
        except self._connection.Error as exc:
            if exc.args[0] != NO_SAVEPOINT:
                raise
            return False
        return True

    def _plain(self) -> Any:
        from MySQLdb.cursors import Cursor  # pyright: ignore[reportMissingModuleSource]

        return Cursor


DRIVERS: tuple[type[Guard], ...] = (
    SQLiteGuard,
    PsycopgGuard,
    Psycopg2Guard,
    PyMySQLGuard,
    MySQLdbGuard,
)


class SQLAlchemyGuard(Guard):
    """SQLAlchemy 2, by the name of the dialect, whatever the driver.

    A session is asked for its connection, which begins its transaction; nothing that waits in it
    is flushed before the fence is passed.
    """

    kinds = ("sqlalchemy.engine.base.Connection", *SESSIONS)

    def __init__(self, connection: Any) -> None:
        super().__init__(connection.connection() if is_a(connection, *SESSIONS) else connection)
        self.dialect = dialect(self._connection.dialect.name)

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
        for guard in DRIVERS:
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
        is_set = options.get("isolation_level") == "AUTOCOMMIT"
        return is_set or getattr(connection.connection, "autocommit", None) is True


class DjangoGuard(Guard):
    """``django.db.connection``, or ``connections[alias]``.

    Outside ``atomic()`` Django commits every statement. Inside, the fence belongs to the innermost
    block: its savepoint takes it back.
    """

    kinds = ("django.db.backends.base.base.BaseDatabaseWrapper",)

    @classmethod
    def accepts(cls, connection: Any) -> bool:
        # A cache is behind the same proxy.
        proxied = is_a(connection, PROXY) and hasattr(connection, "in_atomic_block")
        return proxied or super().accepts(connection)

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self.dialect = dialect(connection.vendor)

    def require_transaction(self) -> None:
        connection = self._connection
        if connection.get_autocommit() and not connection.in_atomic_block:
            raise ConfigurationError(
                f"Django commits each statement on {connection.alias!r}: put the fence and the "
                f"write that is fenced into one `with transaction.atomic({connection.alias!r}):`"
            )

    def execute(self, statement: str, values: Values) -> Any:
        cursor = self._connection.cursor()
        cursor.execute(pyformat(statement), values)
        return cursor


GUARDS: tuple[type[Guard], ...] = (*DRIVERS, SQLAlchemyGuard, DjangoGuard)

ASYNC_OF_SQLALCHEMY = (
    "sqlalchemy.ext.asyncio.session.AsyncSession",
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session",
    "sqlalchemy.ext.asyncio.engine.AsyncConnection",
)


def guard_for(connection: Any) -> Guard:
    """The guard of *connection*. Raises :exc:`~celery_dlock.ConfigurationError` for any other."""
    for guard in GUARDS:
        if guard.accepts(connection):
            return guard(connection)
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    if is_a(connection, *ASYNC_OF_SQLALCHEMY):
        raise ConfigurationError(
            f"cannot fence a {kind} from outside its event loop: await session.run_sync("
            "fencing.admit), which passes the session that it has inside"
        )
    raise ConfigurationError(
        f"cannot fence a {kind}: pass the open connection that writes, not a cursor or an engine: "
        "sqlite3's, psycopg's, PyMySQL's or mysqlclient's Connection, SQLAlchemy's Connection or "
        "Session, or Django's connections[alias]"
    )
