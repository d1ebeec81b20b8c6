"""Errors of a store that answers but cannot read some of the keys it was asked for.

Another program may have written to it. Rows are checked where they are read, so that an error names
their key, and does not come up later where they are used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from celery_dlock.core.state import Cause
from celery_dlock.errors import BackendUnavailable

#: What is raised where a store's contents are other than they were written.
_WRONG = (ValueError, TypeError, AttributeError)
NONSENSE = (*_WRONG, LookupError, ArithmeticError, RecursionError)


class UnreadableKey(BackendUnavailable):
    """The rows of one key make no sense; those of others may."""


class KeysUnavailable(BackendUnavailable):
    """Nothing can be told of *keys* now; of the others it can, if they are asked for alone."""

    def __init__(self, reason: str, keys: Collection[str]) -> None:
        super().__init__(reason, keys)
        self.reason = reason
        self.keys = keys

    def __str__(self) -> str:
        return self.reason


def unreadable(keys: Iterable[str]) -> KeysUnavailable:
    """The error of a look at several keys of which *keys* cannot be read."""
    names = list(keys)
    some = ", ".join(map(repr, names[:3]))
    more = f" and of {len(names) - 3} more" if len(names) > 3 else ""
    return KeysUnavailable(f"what is stored of {some}{more} cannot be read", names)


@contextmanager
def naming(key: str) -> Iterator[None]:
    """Add the key's name to errors raised while its rows are decoded."""
    try:
        yield
    except NONSENSE as exc:
        raise UnreadableKey(f"what is stored of {key!r} cannot be read: {exc!r}") from exc


def is_text(name: object) -> bool:
    """Whether *name* can be that of a key or a task: all of ours are valid UTF-8."""
    if not isinstance(name, str):
        return False
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def number(value: object) -> int:
    """*value*, if it is one that is written here. Raises :exc:`TypeError`."""
    if not isinstance(value, int) or abs(value) >= 2**63:
        raise TypeError(f"{str(value)[:100]} is no number of ours")
    return value


def cause_of(text: str) -> Cause:
    """Why a message is dead; one that a later version knows is none that can be read here."""
    try:
        return Cause(text)
    except ValueError:
        return Cause.UNREADABLE
