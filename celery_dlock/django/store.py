"""The store in the PostgreSQL database of a Django project.

Its connections are its own, and never Django's. Inside a transaction of the project nobody else
would see a lock until the commit, and a rollback would undo it.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.signals import connection_created
from psycopg.pq import Conninfo

from celery_dlock.errors import ConfigurationError
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.postgresql.connection import Connections, address_of
from celery_dlock.stores.postgresql.schema import prepare
from celery_dlock.stores.postgresql.store import PostgresqlBackend


class DjangoBackend(PostgresqlBackend):
    """``django://alias``: the database ``DATABASES[alias]``, which has to be PostgreSQL."""

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> Self:
        def connect() -> Connections:
            return Connections(*address_of_alias(url, options.driver), prepare)

        address_of_alias(url, options.driver)  # a wrong one is refused before the first lock
        backend = cls(connect, options)
        connection_created.connect(backend._on_connection)
        return backend

    def _on_connection(self, connection: Any, **_: object) -> None:
        """Leave the database when Django connects to none, which it does to make or drop one.

        PostgreSQL drops no test database to which somebody is connected. The next operation
        connects to whatever database the alias names then.
        """
        if connection.alias == NO_DB_ALIAS and (left := self._connections.take()) is not None:
            left.close()


def address_of_alias(url: str, driver: Mapping[str, Any]) -> tuple[str, str]:
    """Where libpq connects to, by Django's settings and the options *driver*; the same for people.

    Raises :exc:`~celery_dlock.errors.ConfigurationError`.
    """
    alias = url.partition("://")[2]
    try:
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
        parameters = database.get_connection_params()
    except ImproperlyConfigured as exc:
        raise ConfigurationError(f"django:// needs the settings of Django: {exc}") from exc
    names = {option.keyword.decode() for option in Conninfo.get_defaults()}
    options = {name: value for name, value in parameters.items() if name in names}
    return address_of("", {**options, **driver})
