"""What a store says that answers, and can tell nothing of some of the keys it was asked for.

Somebody else may have written to it. What is read is held to what was written, so that nonsense is
found where it is read, by the key that it concerns, and not where it is used later.
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
    """What a look at some keys raises of which the stores' rows of these make no sense."""
    names = list(keys)
    some = ", ".join(map(repr, names[:3]))
    more = f" and of {len(names) - 3} more" if len(names) > 3 else ""
    return KeysUnavailable(f"what is stored of {some}{more} cannot be read", names)


@contextmanager
def naming(key: str) -> Iterator[None]:
    """What stumbles over the contents of *key* says so."""
    try:
        yield
    except NONSENSE as exc:
        raise UnreadableKey(f"what is stored of {key!r} cannot be read: {exc!r}") from exc


def is_text(name: object) -> bool:
    """Whether *name* can be that of a key or a task: what is no UTF-8 is somebody else's."""
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
