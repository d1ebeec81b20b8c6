"""The store on PostgreSQL: rows in a schema of its own, one transaction for an operation.

What it does not give: a grant that outlives the loss of its server's last commits. A standby that
is promoted without them does not know the holder, and issues the same token again; so a failover
has to be to a synchronous one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import ClassVar, Self, TypeVar

from celery_dlock.core.operations import Operation
from celery_dlock.forking import PerProcess
from celery_dlock.stores.base import BackendOptions, Guarantee, Reply, Trait, Wake
from celery_dlock.stores.sql.rows import Database, SqlDialect
from celery_dlock.stores.sql.store import SqlBackend
from tests.postgresql.connections import Connections, Elsewhere, Lost, connections_of

V = TypeVar("V")


class PostgresqlBackend(SqlBackend):
    """``postgresql://[user[:password]@]host[:port]/database``, with libpq's options in the query.

    It makes the schema ``dlock`` in that database, if it is not there.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset(Trait)
    guarantee: ClassVar[Guarantee] = Guarantee.STRICT
    largest_message: ClassVar[int] = 250_000_000  # twice that goes over the line, of 1 GB at most
    dialect = SqlDialect("SELECT nextval('token')", skip_locked="FOR UPDATE SKIP LOCKED")

    def __init__(self, connect: Callable[[], Connections], options: BackendOptions) -> None:
        super().__init__(options)
        self._clock = options.clock
        self._connections = PerProcess(connect)
        self._connections()  # what is wrong with the URL shows here

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> Self:
        return cls(lambda: connections_of(url, options.driver), options)

    @contextmanager
    def transaction(
        self, keys: Collection[str] = (), *, wait: bool = True
    ) -> Iterator[tuple[Database, int]]:
        connections = self._connections()
        with connections.transaction(self._prefix, keys, wait=wait) as (db, now):
            yield db, now if self._clock is None else self._clock()

    def apply(self, operation: Operation[V]) -> Reply[V]:
        """Where the answer is lost, it is asked for again once, at a new connection."""
        try:
            return super().apply(operation)
        except Lost:
            return super().apply(operation.again())

    def now(self) -> int:
        with self.transaction() as (_, now):
            return now

    def _reap_or_put_off(self, key: str) -> tuple[Wake, ...]:
        """Not where somebody else is at the key, be it another sweep: it stays due if it is."""
        try:
            return super()._reap_or_put_off(key)
        except Elsewhere:
            return ()

    def close(self) -> None:
        """Close the connections; the next operation makes new ones."""
        self._connections().close()
