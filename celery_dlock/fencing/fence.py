"""Fence a write: the resource itself refuses whoever comes too late.

A lock cannot stop a holder that was paused and wakes up after its lease has ended. Its fencing
token can: tokens grow with every grant, the database remembers the largest it has seen, and the
transaction that writes begins by raising it. A paused holder's token is too small by then.

Fencing is not deduplication. A finished task that is delivered again gets a *newer* token and
passes, so :func:`once` notes the effect in the same transaction. Together: it happens once.
"""

from __future__ import annotations

from typing import Any, overload

from celery_dlock.core.current import current_lease
from celery_dlock.core.lease import Lease
from celery_dlock.errors import ConfigurationError, StaleFencingToken
from celery_dlock.fencing.alchemy import SQLAlchemyGuard
from celery_dlock.fencing.django import DjangoGuard
from celery_dlock.fencing.guard import Guard, is_a
from celery_dlock.fencing.mysql import PyMySQLGuard
from celery_dlock.fencing.passes import Pass, require_own_name, require_text, shown
from celery_dlock.fencing.postgresql import PsycopgGuard
from celery_dlock.fencing.sqlite import SQLiteGuard

GUARDS: tuple[type[Guard], ...] = (
    SQLiteGuard,
    PsycopgGuard,
    PyMySQLGuard,
    SQLAlchemyGuard,
    DjangoGuard,
)

ASYNC_OF_SQLALCHEMY = (
    "sqlalchemy.ext.asyncio.session.AsyncSession",
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session",
    "sqlalchemy.ext.asyncio.engine.AsyncConnection",
)


@overload
def admit(connection: Any, lease: Lease | None = None) -> None: ...
@overload
def admit(connection: Any, *, resource: str, fencing_token: int, owner: str) -> None: ...
def admit(
    connection: Any,
    lease: Lease | None = None,
    *,
    resource: str | None = None,
    fencing_token: int | None = None,
    owner: str | None = None,
) -> None:
    """Let the transaction that is about to write pass only if nobody with a newer token has.

    Call it first in that transaction and let what it raises roll the transaction back. It shows
    every key that *lease* (by default the innermost current one) holds exclusively; without a
    lease, give *resource*, *fencing_token* and *owner*.

    A lease that is known to be lost may still ask: the database decides, not the clock.

    Raises :exc:`~celery_dlock.StaleFencingToken` to whoever is too late, and
    :exc:`~celery_dlock.ConfigurationError` in autocommit mode, for a read lock, a missing table
    or a connection of an unknown kind.

    Martin Kleppmann, "How to do distributed locking", 2016.
    """
    passes = shown(lease, resource, fencing_token, owner)
    guard = _guard(connection)
    guard.require_transaction()
    for mine in passes:
        seen = guard.raise_to(mine.resource, mine.token, mine.owner)
        if seen is not None:
            raise StaleFencingToken(mine.resource, mine.token, seen)


def once(connection: Any, effect_id: str) -> bool:
    """Claim an effect in the transaction that causes it: ``True`` if it is new, to be done now.

    ``False``: a transaction that was committed has done it. *effect_id* names the effect in the
    whole database, not the resource; the id of the event or of the task is a good one. Rolling
    back gives the claim back.

    Raises :exc:`~celery_dlock.ConfigurationError` as :func:`admit` does.
    """
    require_text("effect_id", effect_id)
    guard = _guard(connection)
    guard.require_transaction()
    return guard.claim(effect_id)


def mint(connection: Any, resource: str, lease: Lease | None = None) -> int:
    """Have the database itself issue a fencing token: strict order over any lock store.

    It counts up. *lease* (by default the innermost current one) is checked while nobody else can
    count, so whoever holds the lock after it gets a larger token. Commit, then show it with each
    write: ``admit(connection, resource=resource, fencing_token=token, owner=lease.owner)``. Each
    call gives a new token, and the one before it is too old then.

    *resource* is a name of its own. The store's tokens are other numbers, and a key that is fenced
    by both of them is not fenced.

    Raises :exc:`~celery_dlock.LockLost` when the lock can no longer be trusted, and
    :exc:`~celery_dlock.ConfigurationError` as :func:`admit` does, and for one of *lease*'s keys.
    """
    lease = current_lease() if lease is None else lease
    require_own_name(resource, lease)
    guard = _guard(connection)
    guard.require_transaction()
    token = guard.mint(resource, lease.owner)
    lease.check()
    return Pass(resource, token, lease.owner).token


def create_table(connection: Any) -> None:
    """Make the tables ``dlock_fence`` and ``dlock_once`` where they are missing.

    For migrations, and for those without. It commits nothing by itself; MySQL does, before and
    after every such statement.
    """
    _guard(connection).create_tables()


def _guard(connection: Any) -> Guard:
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
        "sqlite3's, psycopg's or PyMySQL's Connection, SQLAlchemy's Connection or Session, or "
        "Django's connections[alias]"
    )
