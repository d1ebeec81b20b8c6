"""How each key of a lock is held, and in which order a task asks for its keys.

Keys without a limit come first, by name; then limits, as they are declared. With the narrow one
first, a task that waits for it takes no slot of a wide one meanwhile, and no more tasks wait for
the wide limit than the narrow one lets through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from operator import itemgetter
from typing import Self

from celery_dlock.core.checks import optional_duration, quoted
from celery_dlock.core.keys import Key
from celery_dlock.core.state import Mode, ask_order
from celery_dlock.errors import ConfigurationError

#: What says how many may hold a key: it is called as the body of the task is.
LimitFunction = Callable[..., int]

#: The largest limit. Every store keeps such a number exactly, in Lua as well, and one operation
#: loads all that hold the key.
LARGEST_LIMIT = 1_000_000


class LimitUnknown(ConfigurationError):
    """A function does not say the limit of a key: it raised, or what it returned is no limit."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A key that *n* tasks may hold at once. ``Limit(key, 1)`` is the same as the key: held alone.

    *n* may be a callable with the parameters of the task, which is asked whenever the task asks for
    the key. A slot stays closed for *cooldown* seconds from each start, even if the task has ended.
    """

    key: Key
    n: int | LimitFunction
    cooldown: float | None = None


@dataclass(frozen=True, slots=True)
class Shared:
    """A key that is held for reading: together with all other readers, and with no writer.

    Beside a key that is held otherwise it is a parent of that one: read for its sake, and nothing
    else.
    """

    key: Key


#: How a task writes an entry of its lock: a key that it holds alone, or one of these.
Wanted = Key | Limit | Shared

#: The same for a block, which has no arguments that a callable would be called with.
WantedText = str | Limit | Shared


@dataclass(frozen=True, slots=True)
class Access:
    """How one key is held; its slot stays closed for *cooldown* seconds from the start on.

    Where a *function* says the limit of a call it is 0 until it was asked. *entry* and *keyset* are
    those of its claims: the number of the entry in the lock of its task, and what tells the calls
    with the same keys apart from others.
    """

    mode: Mode = Mode.EXCLUSIVE
    limit: int = 1
    cooldown: float = 0.0
    function: LimitFunction | None = None
    entry: int = field(default=0, compare=False)
    keyset: str = field(default="", compare=False)

    @classmethod
    def of(cls, entry: Wanted) -> Self:
        """How the key of *entry* is held. Raises as :func:`entries` does."""
        match entry:
            case Limit(n=n, cooldown=seconds):
                cooldown = optional_duration(f"cooldown of {quoted(entry)}", seconds) or 0.0
                if callable(n):
                    return cls(Mode.LIMITED, 0, cooldown, n)
                limit = checked_limit(
                    n,
                    f"n of {quoted(entry)} says how many tasks may hold the key at once: it",
                    "or in a task a function of its arguments that returns one",
                )
                return cls(Mode.EXCLUSIVE if limit == 1 else Mode.LIMITED, limit, cooldown)
            case Shared():
                return cls(Mode.SHARED)
            case _:
                return cls()


def checked_limit(limit: object, source: str, alternative: str = "") -> int:
    """*limit*, which comes from the *source*. Raises :exc:`~celery_dlock.ConfigurationError`."""
    if isinstance(limit, int) and not isinstance(limit, bool) and 1 <= limit <= LARGEST_LIMIT:
        return int(limit)
    numbers = ", ".join(filter(None, (f"a number from 1 to {LARGEST_LIMIT:,}", alternative)))
    raise ConfigurationError(f"{source} is {numbers}, got {quoted(limit)}")


def entries(wanted: Wanted | Sequence[Wanted]) -> list[tuple[Key, Access]]:
    """Each key with its access.

    Raises :exc:`~celery_dlock.ConfigurationError` for an entry that makes no sense.
    """
    is_one = isinstance(wanted, str) or not isinstance(wanted, Sequence)
    listed: Sequence[Wanted] = (wanted,) if is_one else wanted  # type: ignore[assignment]
    return [(_key(entry), Access.of(entry)) for entry in listed]


def _key(entry: Wanted) -> Key:
    given: object = entry
    if isinstance(given, type) and issubclass(given, Limit | Shared):  # it is callable, too
        raise ConfigurationError(
            "how a key is held is said by an object, such as Limit('mail', 3) or "
            f"Shared('catalog'), got {quoted(entry)}"
        )
    if not isinstance(entry, Limit | Shared):
        return entry
    key: object = entry.key
    if isinstance(key, Limit | Shared):
        raise ConfigurationError(
            f"{quoted(entry)}: a key is held in one way; write Limit or Shared, with the key in it"
        )
    if isinstance(key, list | tuple):
        raise ConfigurationError(
            f"{quoted(entry)}: each key has an entry of its own; write the list around the "
            "entries, as in [Limit('a', 3), Limit('b', 3)]"
        )
    return entry.key


def own_places(access: Sequence[Access]) -> list[int]:
    """The places of the keys that are one's own: not only read for the sake of others."""
    places = range(len(access))
    return [n for n in places if access[n].mode is not Mode.SHARED] or list(places)


def check_alike(keys: Iterable[tuple[str, Access]]) -> None:
    """Raise :exc:`~celery_dlock.ConfigurationError` if one of *keys* has two kinds of access."""
    accesses: dict[str, Access] = {}
    for key, access in keys:
        if accesses.setdefault(key, access) != access:
            raise ConfigurationError(
                f"{key!r} is given twice, and not in the same way: a key is held alone, with one "
                "Limit, or as Shared; write both entries alike, or use two keys"
            )


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one call: its own with the *access* to each, in the order in which it asks for
    them, and those that it only *reads* for their sake: their parents.
    """

    access: Mapping[str, Access]
    reads: Mapping[str, Access] = field(default_factory=dict[str, Access])

    @classmethod
    def of(cls, keys: Sequence[tuple[str, Access]]) -> Self:
        """Each key once. Raises as :func:`check_alike` does."""
        if len(keys) == 1:
            return cls(dict(keys))
        check_alike(keys)
        own = dict(keys[place] for place in own_places([access for _, access in keys]))
        reads = {key: access for key, access in keys if key not in own}
        if len(own) > 1:
            keyset = blake2b("\0".join(own).encode(), digest_size=6).hexdigest()
            own = {key: replace(access, keyset=keyset) for key, access in own.items()}
        ordered = sorted(own.items(), key=lambda pair: ask_order(pair[0], pair[1].mode))
        return cls(dict(ordered), dict(sorted(reads.items(), key=itemgetter(0))))

    def limited(self, ask: Callable[[str, LimitFunction], int]) -> Keys:
        """The same with the limits that functions say, which *ask* is called for."""
        access = {
            key: replace(one, limit=ask(key, one.function)) if one.function else one
            for key, one in self.access.items()
        }
        return replace(self, access=access)

    @property
    def own(self) -> tuple[str, ...]:
        return tuple(self.access)

    @property
    def parents(self) -> tuple[str, ...]:
        return tuple(self.reads)

    @property
    def first(self) -> str:
        """The key at which a message waits before it has asked."""
        return self.own[0]

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.own, *self.parents)
