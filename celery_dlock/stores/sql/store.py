"""What stores in SQL have in common: how they are read."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar, TypeVar

from celery_dlock.core.state import KeyState, Waiting
from celery_dlock.stores.base import (
    BackendOptions,
    DeadMessage,
    KeyPage,
    NoteStore,
    by_age,
    first_of,
)
from celery_dlock.stores.sql.rows import (
    Database,
    KeyRows,
    SqlDialect,
    count_dead,
    dead_messages,
    dead_messages_of,
    list_keys,
    listed_swaps,
    message_of,
    parked_tasks,
    read_notes,
)
from celery_dlock.stores.unreadable import NONSENSE, is_text, naming, unreadable

logger = logging.getLogger("celery_dlock")

V = TypeVar("V")

#: So many keys are looked at in one transaction.
LOOK = 100


class SqlBackend(NoteStore):
    """Locks in tables. How operations are applied is for each store to say."""

    dialect: ClassVar[SqlDialect]

    def __init__(self, options: BackendOptions) -> None:
        self._prefix = options.prefix

    @abstractmethod
    def reading(self) -> AbstractContextManager[Database]:
        """What is read within is of one instant."""

    def parked(self, task_ids: Collection[str]) -> list[tuple[str, str]]:
        return [row for some in _parts(task_ids) for row in self._parked(some)]

    def _parked(self, task_ids: Collection[str]) -> list[tuple[str, str]]:
        with self.reading() as db:
            return parked_tasks(db, self._prefix, task_ids)

    def message(self, key: str, task: str) -> bytes | None:
        with self.reading() as db:
            return message_of(db, self._prefix, key, task)

    def dead(self, limit: int = 100) -> list[DeadMessage]:
        with self.reading() as db:
            return dead_messages(db, self._prefix, limit)

    def dead_of(self, task_ids: Collection[str]) -> list[DeadMessage]:
        found = [letter for some in _parts(task_ids) for letter in self._dead_of(some)]
        return sorted(found, key=by_age)

    def _dead_of(self, task_ids: Collection[str]) -> list[DeadMessage]:
        with self.reading() as db:
            return dead_messages_of(db, self._prefix, task_ids)

    def count_dead(self) -> int:
        with self.reading() as db:
            return count_dead(db, self._prefix)

    def notes(self, key: str) -> dict[str, bytes]:
        with self.reading() as db, naming(key):
            return read_notes(db, self._prefix, key)

    def swapped(self, limit: int = 100) -> list[tuple[str, bytes]]:
        now = self.now()
        with self.reading() as db:
            return listed_swaps(db, self._prefix, now, limit)

    def peek(self, key: str, limit: int | None = None) -> KeyState:
        with self.reading() as db, naming(key):
            return self._rows(db, key).load_first(limit)

    def position(self, key: str, task: str) -> tuple[Waiting, int] | None:
        with self.reading() as db, naming(key):
            return self._rows(db, key).position(task)

    def keys(self, cursor: str = "", limit: int = 100, *, waiting: bool = False) -> KeyPage:
        first = first_of(cursor)
        with self.reading() as db:
            tables = ("message",) if waiting else self.dialect.in_use
            return list_keys(db, self._prefix, tables, first, limit)

    def look(self, keys: Sequence[str]) -> list[KeyState]:
        """A hundred at a time, so that nobody waits long who has to write."""
        parts = (keys[start : start + LOOK] for start in range(0, len(keys), LOOK))
        heads = [head for part in parts for head in self._heads(part)]
        if None in heads:
            raise unreadable(key for key, head in zip(keys, heads, strict=True) if head is None)
        return [head for head in heads if head is not None]

    def _heads(self, keys: Sequence[str]) -> list[KeyState | None]:
        now = self.now()
        with self.reading() as db:
            asked = [self._rows(db, key, now).ask_head() for key in keys]
            return [_head(answer) for answer in asked]

    def _rows(self, db: Database, key: str, now: int = 0) -> KeyRows:
        return KeyRows(db, self.dialect, self._prefix, key, now)


def _parts(task_ids: Collection[str]) -> Iterator[list[str]]:
    """A hundred at a time, so that nobody waits long who has to write."""
    names = [task_id for task_id in task_ids if is_text(task_id)]
    return (names[start : start + LOOK] for start in range(0, len(names), LOOK))


def _head(answer: Callable[[], KeyState]) -> KeyState | None:
    """``None`` for a key that cannot be read, which must not hide the others."""
    try:
        return answer()
    except NONSENSE:
        return None
