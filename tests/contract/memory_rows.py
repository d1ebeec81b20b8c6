"""Rows in a dictionary: what a consensus store promises and no more, without a server.

The store of this kind that the rules are compared on for thousands of random operations, and the
one that can be made to answer late, to lose a reply, or to let somebody in between.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

from celery_dlock.errors import ConfigurationError
from celery_dlock.stores.base import BackendOptions, Guarantee, Trait
from celery_dlock.stores.consensus.optimistic import OptimisticBackend
from celery_dlock.stores.consensus.rows import PARTS, Commit, Committed, Kind, Name, Row, Rows


@dataclass
class Shelf:
    """What all processes of a store see: here, all stores of one prefix."""

    rows: dict[Name, Row] = field(default_factory=dict[Name, Row])
    number: int = 0
    mutex: threading.Lock = field(default_factory=threading.Lock)


_shelves: dict[str, Shelf] = {}


class MemoryRows(Rows):
    """*before_commit* is called with each commit, before it is looked at."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self.flights = 0
        self.before_commit: Callable[[Commit], None] = lambda commit: None
        self.after_commit: Callable[[Commit], None] = lambda commit: None

    def read(self, names: Sequence[Name]) -> list[Row | None]:
        self.flights += 1
        with self.shelf.mutex:
            return [self.shelf.rows.get(name) for name in names]

    def commit(self, commit: Commit) -> Committed | None:
        self.before_commit(commit)
        self.flights += 1
        with self.shelf.mutex:
            if not self._may_happen(commit):
                return None
            committed = self._happen(commit)
        self.after_commit(commit)
        return committed

    def _may_happen(self, commit: Commit) -> bool:
        rows = self.shelf.rows
        there = {*commit.update, *commit.delete}
        new = {*commit.absent, *commit.create, *commit.remember}
        if commit.held is not None:
            new.add(commit.held[0])
        assert not there & new, "a row cannot be there and not be there"
        assert not set(commit.update) & commit.delete
        if rows.get(commit.name) != commit.was or any(name in rows for name in commit.absent):
            return False
        if not there <= rows.keys():
            assert commit.delete - rows.keys(), f"updates what is not there: {there - rows.keys()}"
            return False
        return not any(name in rows for name in new)

    def _happen(self, commit: Commit) -> Committed:
        rows, shelf = self.shelf.rows, self.shelf
        shelf.number += 1
        for name, value in commit.update.items():
            rows[name] = Row(value, str(shelf.number), rows[name].born)
        created = {**commit.create, **{n: value for n, (value, _) in commit.remember.items()}}
        if commit.held is not None:
            created[commit.held[0]] = commit.held[1]
        for name, value in created.items():
            rows[name] = Row(value, str(shelf.number), shelf.number)
        for name in commit.delete:
            del rows[name]
        version_row = None
        if commit.version_row is None:
            rows.pop(commit.name, None)
        elif not commit.changes:
            version_row = commit.was
        else:
            born = shelf.number if commit.was is None else commit.was.born
            version_row = rows[commit.name] = Row(commit.version_row, str(shelf.number), born)
        return Committed(shelf.number, version_row)

    def alive(self, holders: Sequence[Name], lease: int) -> list[bool]:
        self.flights += 1
        with self.shelf.mutex:
            return [name in self.shelf.rows for name in holders]

    def drop(self, holder: Name) -> None:
        with self.shelf.mutex:
            self.shelf.rows.pop(holder, None)

    def names(self, kind: Kind, part: int | None = None) -> list[Name]:
        with self.shelf.mutex:
            found = [name for name in self.shelf.rows if name.kind is kind]
        return [name for name in found if part is None or len(name.key) % PARTS == part]

    def keys(self, after: str | None, limit: int) -> list[str]:
        keys = sorted(name.key for name in self.names(Kind.VERSION_ROW))
        return [key for key in keys if after is None or key > after][:limit]

    def names_of(self, kind: Kind, keys: Sequence[str]) -> list[Name]:
        self.flights += 1
        return [name for name in self.names(kind) if name.key in keys]

    def first(self, kind: Kind, limit: int) -> list[Name]:
        return sorted(self.names(kind), key=lambda name: (name.part, name.key))[:limit]

    def now(self) -> int:
        return time.time_ns() // 1000

    def lease_of(self, ttl: int) -> int:
        return ttl

    def close(self) -> None:
        """What is on the shelf stays there."""


class RowsBackend(OptimisticBackend):
    """``rows://``, for the one process that tests it; stores of one prefix share their rows."""

    traits: ClassVar[frozenset[Trait]] = frozenset(
        {Trait.LEASE_PER_TASK, Trait.MONOTONE_FENCING, Trait.STRICT_FENCING}
    )
    guarantee: ClassVar[Guarantee] = Guarantee.STRICT
    largest_message: ClassVar[int] = 2**30

    def __init__(self, options: BackendOptions) -> None:
        self.rows = MemoryRows(_shelves.setdefault(options.prefix, Shelf()))
        super().__init__(self.rows, options)

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> Self:
        if url != "rows://":
            raise ConfigurationError("rows:// takes nothing after it")
        return cls(options)
