"""Fence a write: the resource itself refuses whoever comes too late.

A lock cannot stop a holder that was paused and wakes up after its lease has ended. Its fencing
token can: tokens grow with every grant, the database remembers the largest it has seen, and the
transaction that writes begins by raising it. A paused holder's token is too small by then.

Fencing is not deduplication. A finished task that is delivered again gets a *newer* token and
passes, so :func:`once` notes the effect in the same transaction. Together: it happens once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, overload

from celery_dlock.core.current import current_lease
from celery_dlock.core.lease import Lease
from celery_dlock.core.state import Mode
from celery_dlock.errors import ConfigurationError, StaleFencingToken
from celery_dlock.fencing.guard import Guard
from celery_dlock.fencing.sqlite import SQLiteGuard

GUARDS: tuple[type[Guard], ...] = (SQLiteGuard,)

LARGEST_TOKEN = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Pass:
    """What a writer shows at the fence. Raises :exc:`ConfigurationError` when it is malformed."""

    resource: str
    token: int
    owner: str

    def __post_init__(self) -> None:
        _require_text("resource", self.resource)
        _require_text("owner", self.owner)
        token: object = self.token
        if isinstance(token, bool) or not isinstance(token, int):
            raise ConfigurationError(f"a fencing token is an int, not {token!r}")
        if not 1 <= token <= LARGEST_TOKEN:
            raise ConfigurationError(f"a fencing token is between 1 and 2**63 - 1, not {token}")


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
    given = (resource, fencing_token, owner)
    if given == (None, None, None):
        passes = _passes(current_lease() if lease is None else lease)
    elif lease is None and resource is not None and fencing_token is not None and owner is not None:
        passes = (Pass(resource, fencing_token, owner),)
    else:
        raise ConfigurationError(
            "admit() takes a lease, or all of resource, fencing_token and owner"
        )
    guard = _guard(connection)
    guard.require_transaction()
    for mine in passes:
        if not guard.raise_to(mine.resource, mine.token, mine.owner):
            raise StaleFencingToken(mine.resource, mine.token, guard.seen(mine.resource))


def once(connection: Any, effect_id: str) -> bool:
    """Claim an effect in the transaction that causes it: ``True`` if it is new, to be done now.

    ``False``: a transaction that was committed has done it. *effect_id* names the effect in the
    whole database, not the resource; the id of the event or of the task is a good one. Rolling
    back gives the claim back.

    Raises :exc:`~celery_dlock.ConfigurationError` as :func:`admit` does.
    """
    _require_text("effect_id", effect_id)
    guard = _guard(connection)
    guard.require_transaction()
    return guard.claim(effect_id)


def create_table(connection: Any) -> None:
    """Make the tables ``dlock_fence`` and ``dlock_once`` where they are missing.

    For those without migrations; it commits nothing by itself.
    """
    _guard(connection).create_tables()


def _passes(lease: Lease) -> tuple[Pass, ...]:
    held = [term for term in lease.terms if term.claim.mode is Mode.EXCLUSIVE]
    if not held:
        raise ConfigurationError(
            f"a read lock has no fencing token: {', '.join(lease.keys)} cannot be fenced"
        )
    return tuple(Pass(term.resource, term.token, term.claim.owner) for term in held)


def _guard(connection: Any) -> Guard:
    for guard in GUARDS:
        if guard.accepts(connection):
            return guard(connection)
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    raise ConfigurationError(f"cannot fence a {kind}: pass the sqlite3.Connection that writes")


def _require_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{name} is a text that is not empty, not {value!r}")
