"""Which locks the running code holds: what makes a key re-entrant within one execution.

Kept in a context variable, so it follows the thread or the greenlet that runs the body and
nothing about a lock lives on the Task object, which all threads share.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, overload

from celery_dlock.core.lease import Lease, Term
from celery_dlock.errors import ConfigurationError

#: Leases, each with the store it is of: another application's key of the same name is another lock.
_held: ContextVar[tuple[tuple[Lease, object], ...]] = ContextVar("celery_dlock_held", default=())

T = TypeVar("T")

#: Stands for no default.
_RAISE = object()


@overload
def current_lease() -> Lease: ...
@overload
def current_lease(default: T) -> Lease | T: ...
def current_lease(default: Any = _RAISE) -> Any:
    """The innermost lease that the running code holds, or *default* when it holds none.

    Raises :exc:`~celery_dlock.ConfigurationError` when it holds none and there is no default:
    outside a locked task's body, or in a thread that the body started.
    """
    held = _held.get()
    if held:
        return held[-1][0]
    if default is not _RAISE:
        return default
    raise ConfigurationError(
        "no lock is held here: current_lease() works in the body of a locked task or "
        "inside lock(); pass the lease to threads that the body starts"
    )


def held_term(key: str, store: object = None) -> Term | None:
    """The term under which the running code already holds *key* of *store*, if it does."""
    for lease, of in reversed(_held.get()):
        for term in lease.terms:
            if term.key == key and of is store:
                return term
    return None


def held_keys(store: object) -> list[str]:
    """The keys of *store* that the running code holds, the outermost first."""
    return [term.key for lease, of in _held.get() if of is store for term in lease.terms]


def make_current(lease: Lease, store: object) -> None:
    """Make *lease* of *store* the current one until :func:`end_current`."""
    _held.set((*_held.get(), (lease, store)))


def end_current(lease: Lease) -> None:
    """*lease* is not held any more; it need not be a current one."""
    held = _held.get()
    others = tuple([entry for entry in held if entry[0] is not lease])
    if len(others) < len(held):
        _held.set(others)


@contextmanager
def holding(lease: Lease, store: object = None) -> Iterator[Lease]:
    """Make *lease* of *store* the current one for the time of the block."""
    entry = (lease, store)
    _held.set((*_held.get(), entry))
    try:
        yield lease
    finally:  # a generator may end in another context than it began in: a reset would fail there
        _held.set(tuple(other for other in _held.get() if other is not entry))
