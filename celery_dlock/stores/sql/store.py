"""What stores in SQL have in common: all but where the tables are and how a transaction begins."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar, TypeVar

from celery_dlock.core.lease import SECOND
from celery_dlock.core.operations import Operation, Reap
from celery_dlock.core.state import Claim, KeyState, RenewVerdict, Unknown, Waiting
from celery_dlock.core.turns import WAKE_AGAIN_LAST
from celery_dlock.stores.base import (
    BackendOptions,
    DeadMessage,
    KeyPage,
    NoteStore,
    Reply,
    Swept,
    Wake,
    by_age,
    first_of,
)
from celery_dlock.stores.sql.rows import (
    Database,
    KeyRows,
    SqlDialect,
    Swaps,
    count_dead,
    dead_messages,
    dead_messages_of,
    due_keys,
    list_keys,
    message_of,
    next_due,
    parked_tasks,
    read_notes,
    write_notes,
)
from celery_dlock.stores.unreadable import NONSENSE, is_text, naming, unreadable

logger = logging.getLogger("celery_dlock")

V = TypeVar("V")

#: So many keys are looked at in one transaction.
LOOK = 100


class SqlBackend(NoteStore):
    """Locks in tables, each operation in a transaction."""

    dialect: ClassVar[SqlDialect]

    def __init__(self, options: BackendOptions) -> None:
        self._prefix = options.prefix

    @abstractmethod
    def transaction(
        self, keys: Collection[str] = (), *, wait: bool = True
    ) -> AbstractContextManager[tuple[Database, int]]:
        """What is done within is committed at the end, or none of it; and what time it is.

        Nobody else writes to *keys* meanwhile; without any it may be for reading only, and sees
        one instant. Unless it is to *wait*, it may end in :exc:`BackendUnavailable` where somebody
        else is writing.
        """

    def apply(self, operation: Operation[V]) -> Reply[V]:
        key = operation.claim.key
        with self.transaction([key]) as (db, now), naming(key):
            return self._rows(db, key, now).apply(operation)

    def apply_each(self, operations: Sequence[Operation[V]]) -> list[Reply[V]]:
        keys = {operation.claim.key for operation in operations}
        with self.transaction(keys) as (db, now):
            return [self._rows(db, each.claim.key, now).apply(each) for each in operations]

    def renew(self, claims: Sequence[Claim]) -> list[RenewVerdict]:
        with self.transaction([claim.key for claim in claims]) as (db, now):
            return [_renewed(self._rows(db, claim.key, now), claim) for claim in claims]

    def sweep(self, limit: int = 100) -> Swept:
        with self.transaction() as (db, now):
            overdue = due_keys(db, self._prefix, now, limit)
        wakes = [wake for key in overdue for wake in self._reap_or_put_off(key)]
        with self.transaction() as (db, now):
            later = next_due(db, self._prefix)
        next_in = None if later is None else max(0, later - now) / SECOND
        return Swept(tuple(wakes), next_in)

    def _reap_or_put_off(self, key: str) -> tuple[Wake, ...]:
        """One key that cannot be read must not keep the others waiting."""
        with self.transaction([key], wait=False) as (db, now):
            rows = self._rows(db, key, now)
            db.execute("SAVEPOINT one_key")
            try:
                if not is_text(key):
                    raise ValueError("a name that is no text is none of ours")
                return rows.apply(Reap(key)).wakes
            except NONSENSE:
                logger.exception("nobody is woken for %r", key)
                db.execute("ROLLBACK TO one_key")
                rows.put_off(WAKE_AGAIN_LAST)
                return ()

    def parked(self, task_ids: Collection[str]) -> list[tuple[str, str]]:
        return [row for some in _parts(task_ids) for row in self._parked(some)]

    def _parked(self, task_ids: Collection[str]) -> list[tuple[str, str]]:
        with self.transaction() as (db, _):
            return parked_tasks(db, self._prefix, task_ids)

    def message(self, key: str, task: str) -> bytes | None:
        with self.transaction() as (db, _):
            return message_of(db, self._prefix, key, task)

    def dead(self, limit: int = 100) -> list[DeadMessage]:
        with self.transaction() as (db, _):
            return dead_messages(db, self._prefix, limit)

    def dead_of(self, task_ids: Collection[str]) -> list[DeadMessage]:
        found = [letter for some in _parts(task_ids) for letter in self._dead_of(some)]
        return sorted(found, key=by_age)

    def _dead_of(self, task_ids: Collection[str]) -> list[DeadMessage]:
        with self.transaction() as (db, _):
            return dead_messages_of(db, self._prefix, task_ids)

    def count_dead(self) -> int:
        with self.transaction() as (db, _):
            return count_dead(db, self._prefix)

    def note(self, key: str, token: int, notes: Mapping[str, bytes | None]) -> bool:
        with self.transaction([key]) as (db, _):
            return write_notes(db, self._prefix, key, token, notes)

    def notes(self, key: str) -> dict[str, bytes]:
        with self.transaction() as (db, _), naming(key):
            return read_notes(db, self._prefix, key)

    def swap(self, name: str, was: bytes | None, becomes: bytes | None, stays: int) -> bytes | None:
        with self.transaction([name]) as (db, now), naming(name):
            return Swaps(db, self.dialect, self._prefix, now).swap(name, was, becomes, stays)

    def swapped(self, limit: int = 100) -> list[tuple[str, bytes]]:
        with self.transaction() as (db, now):
            return Swaps(db, self.dialect, self._prefix, now).listed(limit)

    def peek(self, key: str, limit: int | None = None) -> KeyState:
        with self.transaction() as (db, now), naming(key):
            return self._rows(db, key, now).load_first(limit)

    def position(self, key: str, task: str) -> tuple[Waiting, int] | None:
        with self.transaction() as (db, now), naming(key):
            return self._rows(db, key, now).position(task)

    def keys(self, cursor: str = "", limit: int = 100, *, waiting: bool = False) -> KeyPage:
        first = first_of(cursor)
        with self.transaction() as (db, _):
            return list_keys(db, self._prefix, first, limit, waiting)

    def look(self, keys: Sequence[str]) -> list[KeyState]:
        """A hundred at a time, so that nobody waits long who has to write."""
        parts = (keys[start : start + LOOK] for start in range(0, len(keys), LOOK))
        heads = [head for part in parts for head in self._heads(part)]
        if None in heads:
            raise unreadable(key for key, head in zip(keys, heads, strict=True) if head is None)
        return [head for head in heads if head is not None]

    def _heads(self, keys: Sequence[str]) -> list[KeyState | None]:
        with self.transaction() as (db, now):
            return [_head(self._rows(db, key, now)) for key in keys]

    def _rows(self, db: Database, key: str, now: int) -> KeyRows:
        return KeyRows(db, self.dialect, self._prefix, key, now)


def _parts(task_ids: Collection[str]) -> Iterator[list[str]]:
    """A hundred at a time, so that nobody waits long who has to write."""
    names = [task_id for task_id in task_ids if is_text(task_id)]
    return (names[start : start + LOOK] for start in range(0, len(names), LOOK))


def _head(rows: KeyRows) -> KeyState | None:
    """``None`` for a key that cannot be read, which must not hide the others."""
    try:
        return rows.load_head()
    except NONSENSE:
        return None


def _renewed(rows: KeyRows, claim: Claim) -> RenewVerdict:
    """One key that cannot be read must not cost the other leases."""
    try:
        return rows.renew(claim)
    except NONSENSE:
        logger.exception("the lease of %r cannot be renewed", claim.key)
        return Unknown()
