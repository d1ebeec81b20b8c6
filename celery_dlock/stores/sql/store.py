"""What stores in SQL have in common: what is read of them, and how they are swept."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import KeyState, Waiting, task_id_of
from celery_dlock.core.turns import WAKE_AGAIN_LAST
from celery_dlock.stores.base import (
    BackendOptions,
    DeadMessage,
    KeyPage,
    NoteStore,
    Swept,
    Wake,
    by_age,
    first_of,
    page,
)
from celery_dlock.stores.sql.rows import LETTER, Database, KeyRows, SqlDialect, dead_message, put
from celery_dlock.stores.unreadable import NONSENSE, UnreadableKey, is_text, naming, unreadable

logger = logging.getLogger("celery_dlock")

#: So many keys are looked at in one transaction, so that nobody waits long who has to write.
LOOK = 100

#: The latest instant that a column can keep.
_LATEST = 2**63 - 1

# Notes beside a key, and the largest token that has written there.
_PUT_NOTE = put("note", "prefix, key, name", "body")
RAISE_BAR = put("bar", "prefix, key", "token") + " WHERE excluded.token>=bar.token"

_PUT_SWAP = put("swap", "prefix, name", "body", "until")

_OF_TASK = "prefix=? AND task BETWEEN ? AND ?"

# A queue has many rows under one key: this steps from key to key, so a page costs the same
# whatever waits, and holds up the writers of the file only for as long.
_DISTINCT = """WITH RECURSIVE found(key) AS (
    SELECT min(key) FROM {table} WHERE prefix=? AND key>=?
    UNION ALL
    SELECT (SELECT min(key) FROM {table} WHERE prefix=? AND key>found.key)
    FROM found WHERE found.key IS NOT NULL)
SELECT key FROM found WHERE key IS NOT NULL LIMIT ?"""


class SqlBackend(NoteStore):
    """Locks in tables. How operations are applied is for each store to say."""

    dialect: ClassVar[SqlDialect]
    #: The instant for :attr:`SqlDialect.now`; ``None`` is the server's.
    _now: Callable[[], Any]

    def __init__(self, options: BackendOptions) -> None:
        self._prefix = options.prefix

    @abstractmethod
    def reading(self) -> AbstractContextManager[Database]:
        """What is read within is of one instant."""

    def sweeping(self) -> AbstractContextManager[Database]:
        """The same for the look at what is due with which a sweep begins."""
        return self.reading()

    @abstractmethod
    def writing(self, key: str) -> AbstractContextManager[KeyRows]:
        """The rows of *key*, whatever is in them, to be changed."""

    def reap_due(self, key: str) -> tuple[Wake, ...]:
        """Let time pass on *key*."""
        return self.reap(key).wakes

    def _read(self, statement: str, *values: object) -> list[Any]:
        with self.reading() as db:
            return db.execute(statement, (self._prefix, *values)).fetchall()

    def _of_tasks(self, query: str, task_ids: Collection[str]) -> Iterator[Any]:
        """The rows whose task has one of *task_ids*: is called so, or so with a colon behind."""
        names = [task_id for task_id in task_ids if is_text(task_id)]
        for start in range(0, len(names), LOOK):
            some = names[start : start + LOOK]
            bounds = [b for name in some for b in ((name, name), (f"{name}:", f"{name};"))]
            with self.reading() as db:
                find = f"{query} WHERE {_OF_TASK}"
                answers = [db.execute(find, (self._prefix, *each)) for each in bounds]
                rows = [row for answer in answers for row in answer.fetchall()]
            yield from rows

    def parked(self, task_ids: Collection[str]) -> list[tuple[str, str]]:
        rows = self._of_tasks("SELECT key, task FROM message", task_ids)
        readable = ((key, task) for key, task in rows if is_text(key) and is_text(task))
        wanted = set(task_ids)
        return [(key, task) for key, task in readable if task_id_of(task) in wanted]

    def message(self, key: str, task: str) -> bytes | None:
        with naming(key):
            query = "SELECT body FROM message WHERE prefix=? AND key=? AND task=?"
            rows = self._read(query, key, task)
            return bytes(rows[0][0]) if rows else None

    def dead(self, limit: int = 100) -> list[DeadMessage]:
        rows = self._read(f"{LETTER} WHERE prefix=? ORDER BY at, key, task LIMIT ?", limit)
        return [dead_message(row) for row in rows]

    def dead_of(self, task_ids: Collection[str]) -> list[DeadMessage]:
        letters, wanted = map(dead_message, self._of_tasks(LETTER, task_ids)), set(task_ids)
        return sorted((one for one in letters if task_id_of(one.dead.task) in wanted), key=by_age)

    def count_dead(self) -> int:
        return int(self._read("SELECT count(*) FROM dead WHERE prefix=?")[0][0])

    def notes(self, key: str) -> dict[str, bytes]:
        with naming(key):
            rows = self._read("SELECT name, body FROM note WHERE prefix=? AND key=?", key)
            return {name: _note(name, body) for name, body in rows}

    def put_notes(self, db: Database, key: str, notes: Mapping[str, bytes | None]) -> None:
        """Write *notes* beside *key*."""
        for name, text in notes.items():
            at = (self._prefix, key, name)
            if text is None:
                db.execute("DELETE FROM note WHERE prefix=? AND key=? AND name=?", at)
            else:
                db.execute(_PUT_NOTE, (*at, text))

    def swapped(self, limit: int = 100) -> list[tuple[str, bytes]]:
        query = f"""SELECT name, body FROM swap WHERE prefix=? AND until>{self.dialect.now}
            ORDER BY name LIMIT ?"""
        with self.reading() as db:
            rows = db.execute(query, (self._prefix, self._now(), limit)).fetchall()
            return [(name, bytes(body)) for name, body in rows if is_text(name)]

    def put_swap(
        self, db: Database, name: str, body: bytes | None, clock: int | None, stays: int
    ) -> None:
        """Put *body* under *name* for so long; or nothing."""
        at = (self._prefix, name)
        if body is None:
            db.execute("DELETE FROM swap WHERE prefix=? AND name=?", at)
        else:
            put_until = _PUT_SWAP.replace("?) ON", f"{self.dialect.now} + ?) ON")
            db.execute(put_until, (*at, body, clock, stays))

    def sweep(self, limit: int = 100) -> Swept:
        with self.sweeping() as db:
            keys, left = self._due(db, limit)
        wakes = tuple(wake for key in keys for wake in self._reap_or_put_off(key))
        if keys:
            with self.reading() as db:
                _, left = self._due(db, 0)
        return Swept(wakes, None if left is None else max(0, left) / SECOND)

    def _due(self, db: Database, limit: int) -> tuple[list[str], int | None]:
        """Keys on which something is to be done without anybody coming, the most overdue first.

        And in how long the next of all will be. What is no instant is behind all that are.
        """
        now = self.dialect.now
        due = f"SELECT key FROM state WHERE prefix=? AND due<={now} ORDER BY due LIMIT ?"
        left = f"SELECT min(due) - {now} FROM state WHERE prefix=? AND due<=?"
        clock = self._now()
        keys = db.execute(due, (self._prefix, clock, limit))
        next_in = db.execute(left, (clock, self._prefix, _LATEST))
        return [key for (key,) in keys.fetchall()], next_in.fetchone()[0]

    def _reap_or_put_off(self, key: str) -> tuple[Wake, ...]:
        """One key that cannot be read must not keep the others waiting."""
        try:
            return self.reap_due(key)
        except UnreadableKey:
            logger.exception("nobody is woken for %r", key)
        with self.writing(key) as rows:
            rows.put_off(WAKE_AGAIN_LAST, self._now())
        return ()

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
            values = self._prefix, first, self._prefix, limit + 1
            answers = [db.execute(_DISTINCT.format(table=table), values) for table in tables]
            names = {key for answer in answers for (key,) in answer.fetchall() if is_text(key)}
        return page(sorted(names)[: limit + 1], limit)

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


def _note(name: object, body: object) -> bytes:
    if not is_text(name) or not isinstance(body, bytes):
        raise TypeError(f"the note {name!r} cannot be read")
    return body


def _head(answer: Callable[[], KeyState]) -> KeyState | None:
    """``None`` for a key that cannot be read, which must not hide the others."""
    try:
        return answer()
    except NONSENSE:
        return None
