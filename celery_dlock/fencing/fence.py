"""Fence a write: the resource itself refuses whoever comes too late.

A lock cannot stop a holder that was paused and wakes up after its lease has ended. Its fencing
token can: tokens grow with every grant, the database remembers the largest it has seen, and the
transaction that writes begins by raising it. A paused holder's token is too small by then.

Fencing is not deduplication. A finished task that is delivered again gets a *newer* token and
passes, so :func:`once` notes the effect in the same transaction. Together: it happens once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, overload

from celery_dlock.core.lease import Lease, Term
from celery_dlock.core.state import Mode
from celery_dlock.errors import ConfigurationError, StaleFencingToken
from celery_dlock.fencing.guard import guard_for
from celery_dlock.fencing.holder_rows import keep_rows
from celery_dlock.fencing.statements import LONGEST_NAME
from celery_dlock.locks.current import current_lease

LARGEST_TOKEN = 2**63 - 1


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
    """Refuse the transaction if one with a newer token has written before.

    Call it first in the transaction that writes, and let its error roll the transaction back. It
    checks every key that *lease* (by default the innermost current one) holds exclusively. Without
    a lease, give *resource*, *fencing_token* and *owner*. A lease that is known to be lost may
    still ask: the database decides, not the clock.

    If the lock store is in this very PostgreSQL database, it needs no table: it refuses a lock that
    is over, and one that is not stays held until the transaction ends.

    Raises :exc:`~celery_dlock.StaleFencingToken` for an older token. Raises
    :exc:`~celery_dlock.ConfigurationError` in autocommit mode, for a read lock, for a missing
    table, and for a connection of an unknown kind.

    Martin Kleppmann, "How to do distributed locking", 2016.
    """
    if (resource, fencing_token, owner) == (None, None, None):
        lease = current_lease() if lease is None else lease
    passes = shown(lease, resource, fencing_token, owner)
    guard = guard_for(connection)
    guard.require_transaction()
    if lease is not None and keep_rows(guard, exclusive(lease), lease.row_of):
        return
    for own in passes:
        seen = guard.raise_to(own.resource, own.token, own.owner)
        if seen is not None:
            raise StaleFencingToken(own.resource, own.token, seen)


def once(
    connection: Any, effect_id: str, lease: Lease | None = None, *, resource: str | None = None
) -> bool:
    """Claim an effect in the transaction that causes it: ``True`` if it is new and to be done now.

    ``False`` means that a committed transaction has done it. *effect_id* names the effect within
    the key of *lease* (by default the innermost current one): ``"e0"`` of another order is another
    effect. With several keys, or without a lease, *resource* names what the effect belongs to,
    usually one of the keys. A rollback also takes back the claim.

    Raises :exc:`~celery_dlock.ConfigurationError` as :func:`admit` does, and for several keys
    without *resource*.
    """
    require_text("effect_id", effect_id)
    if resource is None:
        lease = current_lease() if lease is None else lease
        written = [term.key for term in exclusive(lease)]
        resource = only_key(written or lease.keys)
    require_text("resource", resource)
    guard = guard_for(connection)
    guard.require_transaction()
    return guard.claim(resource, effect_id)


def mint(connection: Any, resource: str, lease: Lease | None = None) -> int:
    """Have the database itself issue a fencing token: strict order over any lock store.

    It raises a counter. Then it checks *lease* (by default the innermost current one), while no
    other transaction can raise the counter. So a later holder of the lock gets a larger token.
    Commit, then show the token with each write: ``admit(connection, resource=resource,
    fencing_token=token, owner=lease.owner)``. Each call gives a new token, and makes the previous
    one too old.

    *resource* must be another name than a key of *lease*: tokens of the store and minted tokens are
    different numbers, and cannot be compared.

    Raises :exc:`~celery_dlock.LockLost` if the lock can no longer be trusted, and
    :exc:`~celery_dlock.ConfigurationError` like :func:`admit`, and for a key of *lease*.
    """
    lease = current_lease() if lease is None else lease
    require_own_name(resource, lease)
    guard = guard_for(connection)
    guard.require_transaction()
    token = guard.mint(resource, lease.owner)
    lease.check()
    return Pass(resource, token, lease.owner).token


def create_table(connection: Any) -> None:
    """Make the tables ``dlock_fence`` and ``dlock_once`` where they are missing.

    Use it in a migration, or once by hand. It does not commit; MySQL does, before and after every
    such statement.
    """
    guard_for(connection).create_tables()


@dataclass(frozen=True, slots=True)
class Pass:
    """What a writer shows at the fence. Raises :exc:`ConfigurationError` when it is malformed."""

    resource: str
    token: int
    owner: str

    def __post_init__(self) -> None:
        require_text("resource", self.resource)
        require_text("owner", self.owner)
        token: object = self.token
        if isinstance(token, bool) or not isinstance(token, int):
            raise ConfigurationError(f"a fencing token is an int, not {token!r}")
        if not 1 <= token <= LARGEST_TOKEN:
            raise ConfigurationError(f"a fencing token is between 1 and 2**63 - 1, not {token}")


def shown(
    lease: Lease | None, resource: str | None, fencing_token: int | None, owner: str | None
) -> tuple[Pass, ...]:
    """Those of *lease*, by default the innermost current one, or the one that the rest makes."""
    given = (resource, fencing_token, owner)
    if given == (None, None, None):
        return _passes_of(current_lease() if lease is None else lease)
    if lease is None and resource is not None and fencing_token is not None and owner is not None:
        return (Pass(resource, fencing_token, owner),)
    raise ConfigurationError(
        "give the fence either a lease, or all of resource, fencing_token and owner"
    )


def _passes_of(lease: Lease) -> tuple[Pass, ...]:
    """One for every key that *lease* holds exclusively."""
    held = exclusive(lease)
    if not held:
        raise ConfigurationError(
            f"a read lock has no fencing token: {', '.join(lease.keys)} cannot be fenced"
        )
    return tuple(Pass(term.resource, term.token, term.claim.owner) for term in held)


def exclusive(lease: Lease) -> list[Term]:
    """Those of *lease*'s own keys that it may write."""
    return [term for term in lease.own if term.claim.mode is not Mode.SHARED]


def only_key(keys: Iterable[str]) -> str:
    """The key to which an effect belongs; several raise :exc:`ConfigurationError`.

    A scope that is guessed could take two effects for one, and the second would be lost.
    """
    key, *others = dict.fromkeys(keys)
    if others:
        raise ConfigurationError(
            f"this lease has several keys ({', '.join([key, *others])}): name the one that the "
            f"effect belongs to, as in once(connection, effect_id, resource={key!r}), or in Redis "
            f"once=({key!r}, effect_id)"
        )
    return key


def require_own_name(resource: str, lease: Lease) -> None:
    """Raise :exc:`ConfigurationError` if *resource* has tokens already, which are the store's."""
    require_text("resource", resource)
    if resource in (own.resource for own in _passes_of(lease)):
        raise ConfigurationError(
            f"{resource!r} is fenced with the tokens of its lock, which are other numbers: mint "
            f"under a name of its own, such as 'minted:{resource}'"
        )


def require_text(name: str, value: object) -> None:
    """Raise :exc:`ConfigurationError` for what no store of a fence could keep."""
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{name} is a text that is not empty, not {value!r}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ConfigurationError(
            f"{name} is a text that UTF-8 can express, not {value!r}"
        ) from None
    if size > LONGEST_NAME or "\0" in value:
        raise ConfigurationError(
            f"{name} has up to {LONGEST_NAME} bytes, none of them zero: {value[:40]!r}… has {size}"
        )
