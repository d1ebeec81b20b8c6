"""The store in the PostgreSQL database of a Django project.

Its connections are its own, and never Django's. Inside a transaction of the project nobody else
would see a lock until the commit, and a rollback would undo it.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.signals import connection_created
from psycopg.pq import Conninfo

from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.postgresql.connection import Address, Connections, address_of
from celery_dlock.stores.postgresql.store import PostgresqlBackend


def address_of_alias(url: str, driver: Mapping[str, Any]) -> Address:
    """The address by Django's settings and the options *driver*.

    The engine is asked, which may have a new password each time. Raises what
    :func:`~celery_dlock.stores.postgresql.connection.address_of` does.
    """
    alias = url.partition("://")[2]
    try:
        parameters = _database(alias).get_connection_params()
    except ConfigurationError:
        raise
    except ImproperlyConfigured as exc:
        raise ConfigurationError(f"django:// needs the settings of Django: {exc}") from exc
    except Exception as exc:  # an engine asks whoever it likes for a password
        raise BackendUnavailable(
            f"the engine of django://{alias} does not say how to connect: {exc}"
        ) from exc
    names = {option.keyword.decode() for option in Conninfo.get_defaults()}
    options = {name: value for name, value in parameters.items() if name in names}
    return address_of("", {**options, **driver})


def _database(alias: str) -> Any:
    if alias not in connections:
        raise ConfigurationError(
            "django:// is followed by an alias of DATABASES, of which there "
            + (f"is {', '.join(connections)}" if list(connections) else "is none")
        )
    database = connections[alias]
    if database.vendor != "postgresql":
        raise ConfigurationError(
            f"django://{alias} needs PostgreSQL, and that database is {database.vendor}: on "
            "one machine, or for tests, name a file of its own, as sqlite:///dlock.db"
        )
    return database


class DjangoBackend(PostgresqlBackend):
    """``django://alias``: the database ``DATABASES[alias]``, which has to be PostgreSQL."""

    #: The thread in which Django has connected to no database last: it is to make or drop one.
    _maker: ClassVar[int | None] = None

    @classmethod
    def _address_of(cls, url: str, driver: Mapping[str, Any]) -> Address:
        """Raises :exc:`~celery_dlock.errors.BackendUnavailable` where a connection would be in the
        way, of another thread: of what that releases late nothing is left in what is dropped.
        """
        if cls._maker not in (None, threading.get_ident()):
            raise BackendUnavailable("Django is about to make or drop a database")
        return address_of_alias(url, driver)

    def __init__(self, connect: Callable[[], Connections], options: BackendOptions) -> None:
        super().__init__(connect, options)
        connection_created.connect(self._on_connection)

    def _on_connection(self, connection: Any, **_: object) -> None:
        """Leave the database when Django connects to none, which it does to make or drop one.

        PostgreSQL drops no test database to which somebody is connected. The next operation
        connects to whatever database the alias names then.
        """
        is_maker = connection.alias == NO_DB_ALIAS
        DjangoBackend._maker = threading.get_ident() if is_maker else None
        if is_maker and (left := self._connections.take()) is not None:
            left.end()
