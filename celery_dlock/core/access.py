"""How each key of a lock is held, and in which order a task asks for its keys.

Keys without a limit come first, by name; then limits, as they are declared. With the narrow one
first, a task that waits for it takes no slot of a wide one meanwhile, and no more tasks wait for
the wide limit than the narrow one lets through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypedDict

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
    """A key that *n* tasks may hold at once, as an entry of a list of keys.

    *n* may be a callable with the parameters of the task, which is asked whenever the task asks for
    the key. A slot stays closed for *cooldown* seconds from each start.
    """

    key: Key
    n: int | LimitFunction
    cooldown: float | None = None


@dataclass(frozen=True, slots=True)
class Shared:
    """A key that is held for reading, as an entry of a list of keys."""

    key: Key


#: An entry of a lock: a key that is held alone, or one of these.
Wanted = Key | Limit | Shared


class KeyOptions(TypedDict, total=False):
    """Options of a task and of ``lock()`` that apply to all their keys.

    An option is named here and in its rule, :meth:`Access.of`, which has its default.
    """

    limit: int | LimitFunction
    shared: bool
    cooldown: float | None


@dataclass(frozen=True, slots=True)
class Access:
    """How one key is held; its slot stays closed for *cooldown* seconds from the start on.

    Where a *function* says the limit of a call it is 0 until it was asked.
    """

    mode: Mode = Mode.EXCLUSIVE
    limit: int = 1
    cooldown: float = 0.0
    function: LimitFunction | None = None

    @classmethod
    def of(cls, options: KeyOptions) -> Self:
        """Raises :exc:`~celery_dlock.ConfigurationError` for values that make no sense."""
        limit, shared = options.get("limit", 1), options.get("shared", False)
        cooldown = options.get("cooldown")
        function = None if isinstance(limit, int) or not callable(limit) else limit
        limit = 0 if function else checked_limit(limit, "limit=")
        if shared and limit != 1:
            raise ConfigurationError("shared=True has no limit=: readers run together")
        if shared and cooldown is not None:
            raise ConfigurationError("shared=True has no cooldown=: readers start when they like")
        mode = Mode.SHARED if shared else Mode.EXCLUSIVE if limit == 1 else Mode.LIMITED
        return cls(mode, limit, optional_duration("cooldown", cooldown) or 0.0, function)


def checked_limit(limit: object, source: str) -> int:
    """*limit*, which comes from the *source*. Raises :exc:`~celery_dlock.ConfigurationError`."""
    if isinstance(limit, int) and not isinstance(limit, bool) and 1 <= limit <= LARGEST_LIMIT:
        return int(limit)
    numbers = f"a number from 1 to {LARGEST_LIMIT:,}"
    raise ConfigurationError(f"{source} is {numbers}, got {quoted(limit)}")


def entries(wanted: Wanted | Sequence[Wanted], options: KeyOptions) -> list[tuple[Key, Access]]:
    """Each key with its access: that of its own entry, or else that of the *options*.

    Raises :exc:`~celery_dlock.ConfigurationError` if both have one.
    """
    is_one = isinstance(wanted, str) or not isinstance(wanted, Sequence)
    listed: Sequence[Wanted] = (wanted,) if is_one else wanted  # type: ignore[assignment]
    access = Access.of(options)
    if access != Access() and any(isinstance(entry, Limit | Shared) for entry in listed):
        raise ConfigurationError(
            "limit=, shared= and cooldown= apply to all keys: with Limit or Shared in the list "
            "give them to each key, as in Limit('imports', 20, cooldown=60)"
        )
    return [_entry(entry, access) for entry in listed]


def _entry(entry: Wanted, default: Access) -> tuple[Key, Access]:
    match entry:
        case Limit():
            return entry.key, Access.of({"limit": entry.n, "cooldown": entry.cooldown})
        case Shared():
            return entry.key, Access.of({"shared": True})
        case _:
            return entry, default


def check_alike(keys: Iterable[tuple[object, Access]]) -> None:
    """Raise :exc:`~celery_dlock.ConfigurationError` if one of *keys* has two kinds of access."""
    accesses: dict[object, Access] = {}
    for key, access in keys:
        if accesses.setdefault(key, access) != access:
            name = getattr(key, "label", key)
            raise ConfigurationError(f"{name!r} is given twice, and not in the same way")


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one call: its own with the *access* to each, in the order in which it asks for
    them, and their *parents*, which it holds for reading.

    Raises :exc:`~celery_dlock.ConfigurationError` for a key that is both.
    """

    access: Mapping[str, Access]
    parents: tuple[str, ...] = ()

    @classmethod
    def of(cls, keys: Sequence[tuple[str, Access]], parents: Iterable[str] = ()) -> Self:
        """Each key once. Raises as the class does, and as :func:`check_alike` does."""
        if len(keys) == 1 and not parents:
            return cls(dict(keys))
        check_alike(keys)
        ordered = sorted(keys, key=lambda pair: ask_order(pair[0], pair[1].mode))
        return cls(dict(ordered), tuple(sorted(set(parents))))

    def __post_init__(self) -> None:
        if both := self.parents and self.access.keys() & self.parents:
            raise ConfigurationError(f"{min(both)!r} cannot be both a key and its own parent")

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
    def first(self) -> str:
        """The key at which a message waits before it has asked: readers wait in no order."""
        in_order = (key for key, access in self.access.items() if access.mode is not Mode.SHARED)
        return next(in_order, self.own[0])

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.own, *self.parents)
