"""Who writes to a database, and through what: each library has its own word for the same thing."""

from __future__ import annotations

import sqlite3
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any

import django
import psycopg
import psycopg2
import pymysql
import pytest
from django.conf import settings
from django.db import connections, transaction
from sqlalchemy import URL, create_engine, make_url, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from celery_dlock import fencing

#: It comes without a wheel for Linux, so it is where a compiler and MariaDB's headers are.
HAS_MYSQLCLIENT = find_spec("MySQLdb") is not None


class Client(ABC):
    """One connection. A transaction is open as soon as something is executed or begun."""

    #: What fencing is given.
    fenced: Any

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self) -> None:  # noqa: B027
        """Needed where nothing begins by itself."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.begin()
        try:
            yield
        except BaseException:
            self.rollback()
            raise
        self.commit()

    def admit(self, resource: str, token: Any, owner: str = "a") -> None:
        fencing.admit(self.fenced, resource=resource, fencing_token=token, owner=owner)

    def once(self, effect_id: str, resource: str = "shop") -> bool:
        return fencing.once(self.fenced, effect_id, resource=resource)

    @abstractmethod
    def execute(self, statement: str) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def nested(self) -> AbstractContextManager[Any]:
        """A savepoint that an exception takes everything back to."""

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def rollback(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class DriverClient(Client):
    """``sqlite3``, psycopg or PyMySQL by itself."""

    def __init__(self, url: URL, *, autocommit: bool = False) -> None:
        self.fenced = self.connect(url, autocommit=autocommit)

    def connect(self, url: URL, *, autocommit: bool) -> Any:
        match url.get_backend_name():
            case "sqlite":
                level = {"isolation_level": None} if autocommit else {}
                return sqlite3.connect(url.database or "", timeout=60, **level)  # type: ignore[call-overload]
            case "postgresql":
                return psycopg.connect(over("postgresql", url), autocommit=autocommit)
        return pymysql.connect(**parameters(url), autocommit=autocommit)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        cursor = self.fenced.cursor()
        cursor.execute(statement)
        rows = list(cursor.fetchall()) if cursor.description else []
        cursor.close()
        return rows

    @contextmanager
    def nested(self) -> Iterator[None]:
        self.execute("SAVEPOINT nested")
        try:
            yield
        except BaseException:
            self.execute("ROLLBACK TO SAVEPOINT nested")
            raise
        self.execute("RELEASE SAVEPOINT nested")

    def commit(self) -> None:
        self.fenced.commit()

    def rollback(self) -> None:
        self.fenced.rollback()

    def close(self) -> None:
        self.fenced.close()


class Psycopg2Client(DriverClient):
    """psycopg 2 by itself."""

    def connect(self, url: URL, *, autocommit: bool) -> Any:
        connection = psycopg2.connect(over("postgresql", url))
        connection.autocommit = autocommit
        return connection


class MySQLdbClient(DriverClient):
    """mysqlclient by itself."""

    def connect(self, url: URL, *, autocommit: bool) -> Any:
        return mysqlclient().connect(**parameters(url), autocommit=autocommit)


def mysqlclient() -> Any:
    """Its module; where it is not installed the test is skipped."""
    if not HAS_MYSQLCLIENT:
        pytest.skip("pip builds mysqlclient, with a compiler and MariaDB's headers")
    import MySQLdb.cursors

    return MySQLdb


def over(driver: str, url: str | URL) -> str:
    """The same database through *driver*."""
    return make_url(url).set(drivername=driver).render_as_string(hide_password=False)


def parameters(url: URL) -> dict[str, Any]:
    """As drivers of MySQL take them."""
    return {"host": url.host, "port": url.port, "user": url.username, "database": url.database}


class ConnectionClient(Client):
    """A ``Connection`` of SQLAlchemy."""

    def __init__(self, url: URL, *, autocommit: bool = False) -> None:
        options: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"} if autocommit else {}
        self._engine = create_engine(url, poolclass=NullPool, **options)
        self.fenced = self._open()

    def _open(self) -> Any:
        return self._engine.connect()

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        result = self.fenced.execute(text(statement))
        return [tuple(row) for row in result] if result.returns_rows else []

    def nested(self) -> AbstractContextManager[Any]:
        self.execute("SELECT 1")  # pysqlite begins no transaction for a savepoint alone
        return self.fenced.begin_nested()  # type: ignore[no-any-return]

    def commit(self) -> None:
        self.fenced.commit()

    def rollback(self) -> None:
        self.fenced.rollback()

    def close(self) -> None:
        self.fenced.close()
        self._engine.dispose()


class SessionClient(ConnectionClient):
    """A ``Session`` of SQLAlchemy."""

    def _open(self) -> Any:
        return Session(self._engine)


class DjangoClient(Client):
    """An alias of Django."""

    def __init__(self, url: URL, *, autocommit: bool = False) -> None:
        configure_django()
        kind = url.get_backend_name()
        self._alias = uuid.uuid4().hex
        wanted = {
            "ENGINE": f"django.db.backends.{'sqlite3' if kind == 'sqlite' else kind}",
            "NAME": url.database,
            "USER": url.username or "",
            "HOST": url.host or "",
            "PORT": url.port or "",
            "OPTIONS": {"timeout": 60} if kind == "sqlite" else {},
        }
        whole = connections.configure_settings({"default": {}, self._alias: wanted})
        connections.settings[self._alias] = whole[self._alias]
        self.fenced = connections[self._alias]
        self._autocommit = autocommit
        self._blocks = ExitStack()

    def begin(self) -> None:
        if not self._autocommit and not self.fenced.in_atomic_block:
            self._blocks.enter_context(transaction.atomic(self._alias))

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        self.begin()
        with self.fenced.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def admit(self, resource: str, token: Any, owner: str = "a") -> None:
        self.begin()
        super().admit(resource, token, owner)

    def once(self, effect_id: str, resource: str = "shop") -> bool:
        self.begin()
        return super().once(effect_id, resource)

    def nested(self) -> AbstractContextManager[Any]:
        self.begin()
        return transaction.atomic(self._alias)  # type: ignore[no-any-return]

    def commit(self) -> None:
        self._blocks.close()

    def rollback(self) -> None:
        if self.fenced.in_atomic_block:
            self.fenced.set_rollback(True)
        self._blocks.close()

    def close(self) -> None:
        self.rollback()
        self.fenced.close()
        del connections[self._alias], connections.settings[self._alias]


def configure_django() -> None:
    """Settings without a database; aliases are added as they come."""
    if not settings.configured:
        if not HAS_MYSQLCLIENT:
            pymysql.install_as_MySQLdb()
        settings.configure(
            DATABASES={},
            INSTALLED_APPS=["celery_dlock.django", "celery_dlock.fencing", "django_celery_beat"],
            USE_TZ=True,
        )
        django.setup()


#: By the name of the library, or of what is taken from it.
CLIENTS: dict[str, Callable[..., Client]] = {
    "driver": DriverClient,
    "psycopg2": Psycopg2Client,
    "mysqlclient": MySQLdbClient,
    "connection": ConnectionClient,
    "session": SessionClient,
    "django": DjangoClient,
}


def open_client(name: str, url: str, *, autocommit: bool = False) -> Client:
    return CLIENTS[name](make_url(url), autocommit=autocommit)
