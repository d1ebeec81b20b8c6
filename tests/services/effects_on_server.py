"""The payments of :mod:`tests.services.effects` in any database, through SQLAlchemy."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    insert,
    select,
)
from sqlalchemy.pool import NullPool

from celery_dlock import Lease, fencing

PAYMENTS = Table(
    "payments",
    MetaData(),
    Column("number", Integer, primary_key=True),
    Column("effect", String(200)),
    Column("resource", String(200)),
    Column("token", BigInteger),
)


class EffectsOnServer:
    """As :class:`~tests.services.effects.Effects`; *url* names a database."""

    def __init__(self, url: str) -> None:
        self._engine = create_engine(url, poolclass=NullPool)

    def create(self) -> None:
        with self._engine.begin() as connection:
            fencing.create_table(connection)
            PAYMENTS.create(connection)

    def pay(self, lease: Lease, effect: str) -> bool:
        """Whether this call made the payment; raises ``StaleFencingToken`` to who is too late."""
        with self._engine.begin() as connection:
            fencing.admit(connection, lease)
            new = fencing.once(connection, effect, lease)
            if new:
                row = {"effect": effect, "resource": lease.key, "token": lease.fencing_token}
                connection.execute(insert(PAYMENTS), row)
            return new

    def payments(self) -> list[tuple[Any, ...]]:
        """(effect, resource, token) of each, in the order in which they were made."""
        columns = (PAYMENTS.c.effect, PAYMENTS.c.resource, PAYMENTS.c.token)
        with self._engine.begin() as connection:
            rows = connection.execute(select(*columns).order_by(PAYMENTS.c.number))
            return [tuple(row) for row in rows]
