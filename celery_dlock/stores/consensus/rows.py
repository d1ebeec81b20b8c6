"""What a consensus store does for us: named rows, and a commit that happens only if one stands.

ZooKeeper and etcd run no rules of ours. A process reads a key's rows, computes, and commits its
changes on the condition that the key's *version row* is still the one it read (compare-and-set);
every change of a key moves its version row, so of two that overlap one starts again.
:mod:`~celery_dlock.stores.consensus.optimistic` does all that; a store of this kind only says how
rows are read and committed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """What a row is about. Rows of different kinds never share a name."""

    VERSION_ROW = "version"
    HOLDER = "holder"
    PAGE = "page"
    PLACE = "place"
    MESSAGE = "message"
    DONE = "done"
    DEAD = "dead"
    DUE = "due"
    DIED = "died"
    TASK = "task"
    BAR = "bar"
    NOTE = "note"
    SWAP = "swap"


#: Of these the names are listed in the order of their parts, and then of their keys.
ORDERED = frozenset({Kind.DUE, Kind.DIED})


class Name(NamedTuple):
    """A row's name: *key* and *part* may be any text; together with the kind they are unique."""

    kind: Kind
    key: str
    part: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A row as it was read.

    ``stamp`` identifies this writing of it and comes never again under its name, even if the row
    is deleted and made anew. ``born`` is the number of the commit that made the row; numbers of
    commits grow strictly over the whole store, and stay below 2**53.
    """

    value: bytes
    stamp: str
    born: int


# A commit is made for each step of a task, and set[Name]() takes eight times as long as set().
_no_names: Callable[[], set[Name]] = set
_no_values: Callable[[], dict[Name, bytes]] = dict
_no_memories: Callable[[], dict[Name, tuple[bytes, int]]] = dict


@dataclass(slots=True)
class Commit:
    """Changes to the rows of one key that all happen or none.

    The version row is the row *name*; for notes the bar takes its place, and what is swapped is
    such a row itself.
    They happen only if the version row is still *was* (``None``: there is no such row), no row of
    *absent* is there, and each row of *delete* is. The version row's new value is *version_row*
    (``None``: it is deleted, or stays away; the same bytes as before: it stays and moves all the
    same, unless the whole commit changes nothing and only asks whether the row still stands).

    *create* are rows that are not there yet, *update* rows that are. *held* is one holder's row to
    create, which is gone when the lease of this process is; *lease* is for how many microseconds
    from now it must last at least. *remember* are rows to create of which each stays for so many
    microseconds.
    """

    name: Name
    was: Row | None
    version_row: bytes | None
    absent: set[Name] = field(default_factory=_no_names)
    create: dict[Name, bytes] = field(default_factory=_no_values)
    update: dict[Name, bytes] = field(default_factory=_no_values)
    delete: set[Name] = field(default_factory=_no_names)
    held: tuple[Name, bytes] | None = None
    lease: int = 0
    remember: dict[Name, tuple[bytes, int]] = field(default_factory=_no_memories)

    @property
    def changes(self) -> bool:
        """Whether anything is to be written."""
        before = None if self.was is None else self.was.value
        return self.version_row != before or bool(
            self.create or self.update or self.delete or self.held or self.remember
        )


@dataclass(frozen=True, slots=True)
class Committed:
    """It happened: the number of this commit, and the version row as it now is."""

    number: int
    version_row: Row | None


class Rows(ABC):
    """The rows of one prefix on one store. Safe to share between threads.

    Every operation raises :exc:`~celery_dlock.errors.BackendUnavailable` when the store does not
    answer; whether a commit happened is then unknown.
    """

    @abstractmethod
    def read(self, names: Sequence[Name]) -> list[Row | None]:
        """The rows of *names* in one flight, each as it is or was a moment ago.

        They need not be of one instant: what depends on that is confirmed by a commit.
        """

    @abstractmethod
    def commit(self, commit: Commit) -> Committed | None:
        """Let *commit* happen; ``None`` if its condition does not hold. Never reads stale rows."""

    @abstractmethod
    def alive(self, holders: Sequence[Name], lease: int) -> list[bool]:
        """Which of the rows *holders* are there, with a lease of at least *lease* from now on.

        One flight, and never answered from stale rows.
        """

    @abstractmethod
    def drop(self, holder: Name) -> None:
        """Delete a holder's row, whatever the version row says; nothing happens if it is gone."""

    @abstractmethod
    def names(self, kind: Kind, part: int | None = None) -> list[Name]:
        """All names of *kind*, in any order, without what is none of ours.

        With *part*, from 0 to ``PARTS`` - 1, one of about equal parts that together are all.
        """

    @abstractmethod
    def names_of(self, kind: Kind, keys: Sequence[str]) -> list[Name]:
        """All names of *kind* that are about any of *keys*, in one flight and in any order.

        It is for a kind that is not ``ORDERED``, and costs what there is about those keys, or the
        names in as many parts.
        """

    @abstractmethod
    def keys(self, after: str | None, limit: int) -> list[str]:
        """Keys that have a version row, in an order of the store's own: those after *after*.

        At least *limit* of them unless there are no more, and not many more than that.
        """

    @abstractmethod
    def first(self, kind: Kind, limit: int) -> list[Name]:
        """The first *limit* names of a *kind* that is ``ORDERED``."""

    @abstractmethod
    def now(self) -> int:
        """Microseconds since the epoch, on the store's clock as far as it has one."""

    @abstractmethod
    def lease_of(self, ttl: int) -> int:
        """How long a holder may trust a row that it has with a lease of *ttl*; it may connect."""

    def granted(self) -> float | None:
        """As :meth:`LockBackend.granted`."""
        return None

    def certain(self, timeout: float) -> bool:
        """Whether the store can be reached, waiting for it up to *timeout* seconds."""
        return True

    def know_holders(self, is_known: Callable[[Name], bool]) -> None:  # noqa: B027
        """Tell which rows of holders on this process's lease belong to it.

        A store restored from a backup may have others, of tasks that have ended since. What lets
        one lease last as long as the process has to drop them.
        """

    def lost_data(self) -> bool:
        """Whether the store has come back with less than it had, since this was last asked."""
        return False

    def tidy(self, part: int) -> None:  # noqa: B027  # most stores forget by themselves
        """Delete what is not to be remembered any longer, in one part of all."""

    @abstractmethod
    def close(self) -> None:
        """Give the connection back, and with it this process's lease if it has one."""


#: Into so many parts the names of a kind can be listed.
PARTS = 64
