"""The rows of a store in SQL: what an operation loads of one key, and what it writes back.

Every statement goes through an index to a bounded number of rows, so an operation costs the same
with ten waiting or with a million. Lists of keys go from one to the next through an index, too.
The statements are those that SQLite and PostgreSQL share; what differs is an :class:`SqlDialect`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, Protocol, TypeVar, cast

from celery_dlock.core.operations import Operation
from celery_dlock.core.state import (
    WINDOW,
    Cooling,
    Dead,
    Grant,
    Holder,
    KeyState,
    OperatorHold,
    Step,
    Waiting,
    task_id_of,
)
from celery_dlock.core.turns import due
from celery_dlock.stores.base import DeadMessage, KeyPage, Wake, live, page
from celery_dlock.stores.change import REMEMBER_LOST, Change, difference
from celery_dlock.stores.stored import as_json, dead_or_unreadable, restored, restored_each
from celery_dlock.stores.unreadable import is_text, number

T = TypeVar("T")
V = TypeVar("V")

#: The latest instant that a column can keep.
_LATEST = 2**63 - 1

#: How many expired memories of tasks are deleted whenever one is added, and expired swaps.
SWEEP = 16


def columns(record: Any) -> list[str]:
    """The columns of its fields, by their names: quoted, for one of them is a word of SQL."""
    return [f'"{field.name}"' for field in fields(record)]


_WAITING, _DEAD = columns(Waiting), columns(Dead)

#: An order that only the primary key has: without statistics a planner may take another index, and
#: look at all that wait.
BY_TASK = "task BETWEEN ? AND ? ORDER BY task LIMIT 1"

ENTRY = f"SELECT {', '.join(_WAITING)} FROM waiting WHERE prefix=? AND key=?"

_LETTER = f"SELECT key, body, {', '.join(_DEAD)} FROM dead"

_OF_TASK = "prefix=? AND task BETWEEN ? AND ?"

# A queue has many rows under one key: this steps from key to key, so a page costs the same
# whatever waits, and holds up the writers of the file only for as long.
_DISTINCT = """WITH RECURSIVE found(key) AS (
    SELECT min(key) FROM {table} WHERE prefix=? AND key>=?
    UNION ALL
    SELECT (SELECT min(key) FROM {table} WHERE prefix=? AND key>found.key)
    FROM found WHERE found.key IS NOT NULL)
SELECT key FROM found WHERE key IS NOT NULL LIMIT ?"""


def put(table: str, names: str, *values: str) -> str:
    """Insert a row, or replace the *values* of the one whose primary key, *names*, is the same."""
    columns = ", ".join((names, *values))
    marks = ", ".join("?" * (columns.count(",") + 1))
    changed = ", ".join(f"{value}=excluded.{value}" for value in values)
    insert = f"INSERT INTO {table} ({columns}) VALUES ({marks})"
    return f"{insert} ON CONFLICT ({names}) DO UPDATE SET {changed}"


_TASK = "prefix, key, task"
_PUT_STATE = put(
    *("state", "prefix, key", "holders", "grants", "cooling", "hold", "parked", "paused", "due")
)
_PUT_WAITING = put("waiting", _TASK, *_WAITING[1:])
_PUT_MESSAGE = put("message", _TASK, "body")
# Its body is that of the operation, or that of the message that waits.
_PUT_DEAD = put("dead", _TASK, *_DEAD[1:], "body").replace(
    "?) ON", "COALESCE(?, (SELECT body FROM message WHERE prefix=? AND key=? AND task=?), ?)) ON"
)
_PUT_PAST = put("past", f"{_TASK}, done", "lost", "until")

# Notes beside a key, and the largest token that has written there.
_PUT_NOTE = put("note", "prefix, key, name", "body")
_PUT_SWAP = put("swap", "prefix, name", "body", "until")
_RAISE = put("bar", "prefix, key", "token") + " WHERE excluded.token>=bar.token"

_of_waiting = attrgetter(*(field.name for field in fields(Waiting)))
_of_dead = attrgetter(*(field.name for field in fields(Dead)))


class Cursor(Protocol):
    """What came of a statement: a cursor of a driver."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Database(Protocol):
    """A connection in a transaction. In a statement ``?`` stands for each of the *values*."""

    def execute(self, statement: str, values: tuple[Any, ...] = ..., /) -> Cursor: ...


@dataclass(frozen=True, slots=True)
class SqlDialect:
    """Where one SQL is not as the other.

    ``in_use`` are the tables with rows of each key that is in use. ``forget`` deletes some of what
    is remembered of tasks, and was so until an instant.
    """

    in_use: tuple[str, ...]
    forget: str = f"""DELETE FROM past WHERE (prefix, key, task, done) IN
    (SELECT prefix, key, task, done FROM past WHERE until<=? ORDER BY until LIMIT {SWEEP})"""


def due_keys(db: Database, prefix: str, now: int, limit: int) -> list[str]:
    """Keys on which something is to be done without anybody coming, the most overdue first."""
    rows = db.execute(
        "SELECT key FROM state WHERE prefix=? AND due<=? ORDER BY due LIMIT ?", (prefix, now, limit)
    )
    return [row[0] for row in rows]


def next_due(db: Database, prefix: str) -> int | None:
    """When the next of them will be. What is no instant is behind all that are."""
    row = db.execute("SELECT min(due) FROM state WHERE prefix=? AND due<=?", (prefix, _LATEST))
    found: int | None = row.fetchone()[0]
    return found


def dead_messages(db: Database, prefix: str, limit: int) -> list[DeadMessage]:
    """The dead of all keys, the oldest first."""
    rows = db.execute(f"{_LETTER} WHERE prefix=? ORDER BY at, key, task LIMIT ?", (prefix, limit))
    return [_dead_message(row) for row in rows]


def parked_tasks(db: Database, prefix: str, task_ids: Collection[str]) -> list[tuple[str, str]]:
    """Key and task of each message under any of *task_ids*, wherever it waits."""
    rows = _of_tasks(db, "SELECT key, task FROM message", prefix, task_ids)
    readable = ((key, task) for key, task in rows if is_text(key) and is_text(task))
    return [(key, task) for key, task in readable if task_id_of(task) in task_ids]


def dead_messages_of(db: Database, prefix: str, task_ids: Collection[str]) -> list[DeadMessage]:
    """The dead of *task_ids*, whatever their keys, in any order."""
    rows = _of_tasks(db, _LETTER, prefix, task_ids)
    letters = map(_dead_message, rows)
    return [letter for letter in letters if task_id_of(letter.dead.task) in task_ids]


def _of_tasks(db: Database, query: str, prefix: str, task_ids: Collection[str]) -> Iterator[Any]:
    """The rows whose task has one of *task_ids*: is called so, or so with a colon behind."""
    bounds = [b for t in task_ids for b in ((t, t), (f"{t}:", f"{t};"))]
    answers = [db.execute(f"{query} WHERE {_OF_TASK}", (prefix, *each)) for each in bounds]
    for answer in answers:
        yield from answer.fetchall()


def count_dead(db: Database, prefix: str) -> int:
    """How many are dead, of all keys."""
    count: int = db.execute("SELECT count(*) FROM dead WHERE prefix=?", (prefix,)).fetchone()[0]
    return count


def message_of(db: Database, prefix: str, key: str, task: str) -> bytes | None:
    """The message of *task* for *key*, if there is one."""
    at = (prefix, key, task)
    row = db.execute("SELECT body FROM message WHERE prefix=? AND key=? AND task=?", at).fetchone()
    return None if row is None else bytes(row[0])


def list_keys(
    db: Database, prefix: str, tables: Collection[str], first: str, limit: int
) -> KeyPage:
    """Keys with a row in any of *tables* from *first* on, in the order of their names."""
    values = prefix, first, prefix, limit + 1
    answers = [db.execute(_DISTINCT.format(table=table), values) for table in tables]
    names = {key for answer in answers for (key,) in answer.fetchall() if is_text(key)}
    return page(sorted(names)[: limit + 1], limit)


def raise_bar(db: Database, prefix: str, key: str, token: int) -> Cursor:
    """Note that *token* writes beside *key*; of one that is smaller than the last, no row."""
    return db.execute(_RAISE, (prefix, key, token))


def put_notes(db: Database, prefix: str, key: str, notes: Mapping[str, bytes | None]) -> None:
    """Write *notes* beside *key*."""
    for name, text in notes.items():
        if text is None:
            db.execute("DELETE FROM note WHERE prefix=? AND key=? AND name=?", (prefix, key, name))
        else:
            db.execute(_PUT_NOTE, (prefix, key, name, text))


def read_notes(db: Database, prefix: str, key: str) -> dict[str, bytes]:
    """What stands beside *key*."""
    rows = db.execute("SELECT name, body FROM note WHERE prefix=? AND key=?", (prefix, key))
    return {name: _note(name, body) for name, body in rows.fetchall()}


def listed_swaps(db: Database, prefix: str, now: int, limit: int) -> list[tuple[str, bytes]]:
    """The first *limit* names, in their order, and what stands there."""
    rows = db.execute(
        "SELECT name, body FROM swap WHERE prefix=? AND until>? ORDER BY name LIMIT ?",
        (prefix, now, limit),
    ).fetchall()
    return [(name, bytes(body)) for name, body in rows if is_text(name)]


class Swaps:
    """What is put under names, within one transaction that began at *now*."""

    def __init__(self, db: Database, prefix: str, now: int) -> None:
        self._db = db
        self._prefix = prefix
        self._now = now

    def swap(self, name: str, was: bytes | None, becomes: bytes | None, stays: int) -> bytes | None:
        """Put *becomes* there if it is *was*; what stands there now."""
        at = (self._prefix, name)
        stands = self._stands(at)
        if stands != was:
            return stands
        if becomes is None:
            self._db.execute("DELETE FROM swap WHERE prefix=? AND name=?", at)
        else:
            self._sweep()
            self._db.execute(_PUT_SWAP, (*at, becomes, self._now + stays))
        return becomes

    def _stands(self, at: tuple[str, str]) -> bytes | None:
        rows = self._db.execute("SELECT body, until FROM swap WHERE prefix=? AND name=?", at)
        body, until = rows.fetchone() or (b"", 0)
        return bytes(body) if until > self._now else None

    def _sweep(self) -> None:
        """Delete some of those whose time is over, whoever put them there."""
        self._db.execute(
            "DELETE FROM swap WHERE (prefix, name) IN "
            "(SELECT prefix, name FROM swap WHERE until<=? ORDER BY until LIMIT ?)",
            (self._now, SWEEP),
        )


class KeyRows:
    """The rows of one key. Statements are executed before any of their answers is fetched."""

    def __init__(self, db: Database, dialect: SqlDialect, prefix: str, key: str, now: int) -> None:
        self._db = db
        self._dialect = dialect
        self._at = (prefix, key)
        self._due: int | None = None
        self._letter = b""
        self.now = now

    def ask_key(self) -> Callable[[], KeyState]:
        """Who holds the key and whose turn has come: all that a renewal needs."""
        answer = self._run(
            "SELECT holders, grants, cooling, hold, parked, paused, due FROM state "
            "WHERE prefix=? AND key=?"
        )
        return lambda: self._key(answer.fetchone())

    def _key(self, row: tuple[Any, ...] | None) -> KeyState:
        if row is None:
            return KeyState()
        holders, grants, cooling, hold, parked, paused, self._due = row
        return KeyState(
            _records(Holder, holders),
            _records(Grant, grants),
            parked=number(parked),
            paused=number(paused),
            cooling=_records(Cooling, cooling),
            hold=None if hold is None else restored(OperatorHold, json.loads(hold)),
        )

    def load_first(self, limit: int | None) -> KeyState:
        """The first *limit* of the queue, too, or all; ``done`` and ``lost`` are left out."""
        key = self.ask_key()
        most = "" if limit is None else f" LIMIT {limit}"
        entries = self._run(f"{ENTRY} ORDER BY rank{most}")
        state, waiting = key(), self._entries(entries.fetchall())
        ranks = [entry.rank for entry in waiting] or [0]
        return replace(state, waiting=waiting, first=ranks[0], last=ranks[-1])

    def position(self, task: str) -> tuple[Waiting, int] | None:
        """The entry of *task* in the queue, and how many may stand before it, by their ranks."""
        row = self._run(f"{ENTRY} AND {BY_TASK}", task, task)
        first = self._run("SELECT rank FROM waiting WHERE prefix=? AND key=? ORDER BY rank LIMIT 1")
        for entry in self._entries(row.fetchall()):
            return entry, entry.rank - number(first.fetchone()[0])
        return None

    def ask_head(self) -> Callable[[], KeyState]:
        """What everybody sees, the same whatever waits behind it; nothing is changed."""
        key, head = self.ask_key(), self._run(f"{ENTRY} ORDER BY rank LIMIT {WINDOW}")
        return lambda: replace(key(), waiting=live(self._entries(head.fetchall()), self.now))

    def _entries(self, rows: Iterable[tuple[Any, ...]]) -> tuple[Waiting, ...]:
        return tuple(map(entry, rows))

    def put_off(self, delay: int) -> None:
        """Make the key due in *delay* microseconds, whatever is in it."""
        prefix, key = self._at
        which, name = "key=?", cast("object", key)
        if isinstance(name, str) and not is_text(name):
            which, name = "key=CAST(? AS TEXT)", name.encode("utf-8", "surrogateescape")
        update = f"UPDATE state SET due=? WHERE prefix=? AND {which}"
        self._db.execute(update, (self.now + delay, prefix, name))

    def ask_messages(self, step: Step[object]) -> Cursor | None:
        """The messages of those whom *step* wakes, before it deletes any."""
        if not step.wakes:
            return None
        marks = ", ".join("?" * len(step.wakes))
        query = f"SELECT task, body FROM message WHERE prefix=? AND key=? AND task IN ({marks})"
        return self._run(query, *(turn.task for turn in step.wakes))

    def save(self, operation: Operation[object], before: KeyState, step: Step[object]) -> Change:
        """Write what *step* changed."""
        message = self.message_of(operation, before)
        for dead in before.dead:
            self._run("DELETE FROM dead WHERE prefix=? AND key=? AND task=?", dead.task)
        change = difference(before, step)
        self._save_slots(before, step.state, change)
        self._save_dead(change, message)
        self._save_queue(change, message)
        for task in change.unparked:
            self._run("DELETE FROM message WHERE prefix=? AND key=? AND task=?", task)
        self._save_past(change, operation.claim.done_ttl)
        return change

    def message_of(self, operation: Operation[object], before: KeyState) -> bytes | None:
        """The message that *operation* brings, or the dead one that it takes off the list."""
        return self._letter if before.dead else operation.message

    def wakes(
        self, step: Step[object], change: Change, message: bytes | None, rows: Iterable[Any]
    ) -> tuple[Wake, ...]:
        """What the caller has to publish; *rows* are of :meth:`ask_messages`.

        A message that should be there and is not is woken all the same: so somebody notices.
        """
        bodies = {task: _body(body) for task, body in rows}
        bodies |= dict.fromkeys(change.parked, message or b"")
        _, key = self._at
        return tuple(
            Wake(key, turn.task, bodies.get(turn.task, b""), turn.ending, turn.woken)
            for turn in step.wakes
        )

    def _save_slots(self, before: KeyState, state: KeyState, change: Change) -> None:
        if not change.slots and due(state) == self._due:  # a renewal leaves it where it was
            return
        slots = (state.holders, state.grants, state.cooling)
        if any(slots) or state.hold or state.parked:
            texts = (as_json(records) if records else _NONE for records in slots)
            hold = None if state.hold is None else as_json(state.hold)
            self._run(_PUT_STATE, *texts, hold, state.parked, state.paused, due(state))
        else:
            self._run("DELETE FROM state WHERE prefix=? AND key=?")

    def _save_queue(self, change: Change, message: bytes | None) -> None:
        for task in change.gone:
            self._drop_entry(task)
        for entry in change.came:
            self._run(_PUT_WAITING, *_of_waiting(entry))
        for task in change.parked:
            self._run(_PUT_MESSAGE, task, message or b"")

    def _drop_entry(self, task: str) -> None:
        self._run("DELETE FROM waiting WHERE prefix=? AND key=? AND task=?", task)

    def _save_dead(self, change: Change, message: bytes | None) -> None:
        for d in change.dead:
            self._run(_PUT_DEAD, *_of_dead(d), message or None, *self._at, d.task, b"")

    def ask_dead(self, task: str) -> Cursor:
        """The dead letter of *task*, for :meth:`_dead`."""
        return self._run(f"{_LETTER} WHERE prefix=? AND key=? AND task=?", task)

    def _dead(self, rows: list[Any]) -> tuple[Dead, ...]:
        for row in rows:
            self._letter = _body(row[1])
        return tuple(_dead(row) for row in rows)

    def _save_past(self, change: Change, done_ttl: int) -> None:
        for task in change.undone:
            self._run("DELETE FROM past WHERE prefix=? AND key=? AND task=? AND done=1", task)
        for task in change.done:
            self._remember(task, done=1, lost=0, until=self.now + done_ttl)
        for task, count in change.lost.items():
            if count:
                self._remember(task, done=0, lost=count, until=self.now + REMEMBER_LOST)
            else:
                self._run("DELETE FROM past WHERE prefix=? AND key=? AND task=? AND done=0", task)

    def _remember(self, task: str, *, done: int, lost: int, until: int) -> None:
        self._db.execute(self._dialect.forget, (self.now,))
        self._run(_PUT_PAST, task, done, lost, until)

    def _run(self, statement: str, *values: object) -> Cursor:
        return self._db.execute(statement, (*self._at, *values))


#: No holder, no turn or no slot that cools down: read and written without the encoder.
_NONE = "[]"


def _records(kind: Callable[..., T], text: str) -> tuple[T, ...]:
    return () if text == _NONE else restored_each(kind, json.loads(text))


def named(record: Any, values: Iterable[Any]) -> dict[str, Any]:
    """The *values* of its fields, in their order, by name."""
    names = (field.name for field in fields(record))
    return dict(zip(names, values, strict=True))


def entry(row: tuple[Any, ...]) -> Waiting:
    values = named(Waiting, row)
    return restored(Waiting, {**values, "ordered": bool(number(values["ordered"]))})


def _dead(row: tuple[Any, ...]) -> Dead:
    return restored(Dead, named(Dead, row[2:]))


def _note(name: object, body: object) -> bytes:
    if not is_text(name) or not isinstance(body, bytes):
        raise TypeError(f"the note {name!r} cannot be read")
    return body


def _body(value: object) -> bytes:
    """A message as it was written; of another type it is none."""
    return value if isinstance(value, bytes) else b""


def _dead_message(row: tuple[Any, ...]) -> DeadMessage:
    key, body, task, *_ = row
    dead = dead_or_unreadable(_shown(task), lambda: _dead(row))
    return DeadMessage(_shown(key), dead, _body(body))


def _shown(name: object) -> str:
    """A name for people, which may be no UTF-8."""
    raw = name.encode("utf-8", "surrogateescape") if isinstance(name, str) else name
    return raw.decode("utf-8", "backslashreplace") if isinstance(raw, bytes) else str(raw)
