"""How each key of a lock is held, and in which order a task asks for its keys.

First those without a limit, by name; then the limits, from the narrow one to the wide one. A task
that has to wait for a narrow limit so takes no slot of a wide one meanwhile, and of a crowd that
fits through the narrow one no more than fits stands before the wide one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypedDict

from celery_dlock.core.checks import duration, quoted
from celery_dlock.core.keys import Key
from celery_dlock.core.state import Mode, ask_order
from celery_dlock.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Limit:
    """A key that *n* tasks may hold at once, as an entry of a list of keys.

    A slot stays closed for *cooldown* seconds from each start.
    """

    key: Key
    n: int
    cooldown: float | None = None


@dataclass(frozen=True, slots=True)
class Shared:
    """A key that is held for reading, as an entry of a list of keys."""

    key: Key


#: What a lock may ask for: a key for itself alone, or one of these.
Wanted = Key | Limit | Shared


class KeyOptions(TypedDict, total=False):
    """How a task or a block holds its keys, where it says so of all of them at once.

    An option is named here, and in its rule, which is :meth:`Access.of`.
    """

    limit: int
    shared: bool
    cooldown: float | None


@dataclass(frozen=True, slots=True)
class Access:
    """How one key is held; its slot stays closed for *cooldown* seconds from the start on."""

    mode: Mode = Mode.EXCLUSIVE
    limit: int = 1
    cooldown: float = 0.0

    @property
    def is_alone(self) -> bool:
        """Whether nobody else has the key meanwhile."""
        return self.mode is Mode.EXCLUSIVE and self.limit == 1

    @classmethod
    def of(cls, options: KeyOptions) -> Self:
        """Raises :exc:`~celery_dlock.ConfigurationError` for what cannot be meant."""
        limit, shared = options.get("limit", 1), options.get("shared", False)
        cooldown = options.get("cooldown")
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ConfigurationError(f"limit= is a number from 1 up, got {quoted(limit)}")
        if shared and limit != 1:
            raise ConfigurationError("shared=True has no limit=: readers run together")
        if shared and cooldown is not None:
            raise ConfigurationError("shared=True has no cooldown=: readers start when they like")
        mode = Mode.SHARED if shared else Mode.EXCLUSIVE
        return cls(mode, limit, 0.0 if cooldown is None else duration("cooldown", cooldown))


def entries(wanted: Wanted | Sequence[Wanted], options: KeyOptions) -> list[tuple[Key, Access]]:
    """Each key with how it is held: as its entry says, or as the options say of all.

    Raises :exc:`~celery_dlock.ConfigurationError` where both say it.
    """
    alone = isinstance(wanted, str) or not isinstance(wanted, Sequence)
    several: Sequence[Wanted] = (wanted,) if alone else wanted  # type: ignore[assignment]
    access = Access.of(options)
    if access != Access() and any(isinstance(entry, Limit | Shared) for entry in several):
        raise ConfigurationError(
            "limit=, shared= and cooldown= apply to all keys: with Limit or Shared in the list "
            "give them to each key, as in Limit('imports', 20, cooldown=60)"
        )
    return [_entry(entry, access) for entry in several]


def _entry(wanted: Wanted, usual: Access) -> tuple[Key, Access]:
    match wanted:
        case Limit():
            return wanted.key, Access.of({"limit": wanted.n, "cooldown": wanted.cooldown})
        case Shared():
            return wanted.key, Access.of({"shared": True})
        case _:
            return wanted, usual


def check_alike(asked: Iterable[tuple[object, Access]]) -> None:
    """Raise :exc:`~celery_dlock.ConfigurationError` if one is *asked* for in two ways."""
    first: dict[object, Access] = {}
    for key, access in asked:
        if first.setdefault(key, access) != access:
            name = getattr(key, "label", key)
            raise ConfigurationError(f"{name!r} is given twice, and not in the same way")


@dataclass(frozen=True, slots=True)
class Keys:
    """What one call locks: its own keys in the order in which it asks for them, each with how it is
    held; and their *parents*, which it only holds for reading.

    Raises :exc:`~celery_dlock.ConfigurationError` for a key that is both.
    """

    access: Mapping[str, Access]
    parents: tuple[str, ...] = ()

    @classmethod
    def of(cls, asked: Sequence[tuple[str, Access]], parents: Iterable[str] = ()) -> Self:
        """Each key once. Raises as the class does, and for one that is asked for in two ways."""
        check_alike(asked)
        ordered = sorted(asked, key=lambda each: ask_order(each[0], each[1].limit))
        return cls(dict(ordered), tuple(sorted(set(parents))))

    def __post_init__(self) -> None:
        both = self.access.keys() & self.parents
        if both:
            raise ConfigurationError(f"{min(both)!r} cannot be both a key and its own parent")

    @property
    def own(self) -> tuple[str, ...]:
        return tuple(self.access)

    @property
    def first(self) -> str:
        """The key at which a message waits before it has asked: readers wait in no order."""
        writes = (key for key, access in self.access.items() if access.mode is Mode.EXCLUSIVE)
        return next(writes, self.own[0])

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.own, *self.parents)
