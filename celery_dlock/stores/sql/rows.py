"""The rows of a store in SQL: what an operation loads of one key, and what it writes back.

Every statement goes through an index to a bounded number of rows, so an operation costs the same
with ten waiting or with a million. Lists of keys go from one to the next through an index, too.
The statements are those that SQLite and PostgreSQL share; what differs is an :class:`SqlDialect`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
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
)
from celery_dlock.core.turns import due
from celery_dlock.stores.base import DeadMessage, Wake, live
from celery_dlock.stores.change import REMEMBER_LOST, Change, difference
from celery_dlock.stores.stored import as_json, dead_or_unreadable, restored, restored_each
from celery_dlock.stores.unreadable import is_text, number

T = TypeVar("T")

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

LETTER = f"SELECT key, body, {', '.join(_DEAD)} FROM dead"


def put(table: str, names: str, *values: str) -> str:
    """Insert a row, or replace the *values* of the one whose primary key, *names*, is the same."""
    columns = ", ".join((names, *values))
    marks = ", ".join("?" * (columns.count(",") + 1))
    changed = ", ".join(f"{value}=excluded.{value}" for value in values)
    insert = f"INSERT INTO {table} ({columns}) VALUES ({marks})"
    return f"{insert} ON CONFLICT ({names}) DO UPDATE SET {changed}"


_TASK = "prefix, key, task"

#: The columns of a key's state beside its holders.
STATE = "grants, cooling, hold, parked, paused, due"
_PUT_STATE = put("state", "prefix, key", "holders", *STATE.split(", "))
_PUT_WAITING = put("waiting", _TASK, *_WAITING[1:])
_PUT_MESSAGE = put("message", _TASK, "body")
# Its body is that of the operation, or that of the message that waits.
_PUT_DEAD = put("dead", _TASK, *_DEAD[1:], "body").replace(
    "?) ON", "COALESCE(?, (SELECT body FROM message WHERE prefix=? AND key=? AND task=?), ?)) ON"
)
_PUT_PAST = put("past", f"{_TASK}, done", "lost", "until")

_of_waiting = attrgetter(*(field.name for field in fields(Waiting)))
_of_dead = attrgetter(*(field.name for field in fields(Dead)))


class Cursor(Protocol):
    """What came of a statement: a cursor of a driver."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...


class Database(Protocol):
    """A connection in a transaction. In a statement ``?`` stands for each of the *values*."""

    def execute(self, statement: str, values: tuple[Any, ...] = ..., /) -> Cursor: ...


@dataclass(frozen=True, slots=True)
class SqlDialect:
    """Where one SQL is not as the other.

    ``in_use`` are the tables with rows of each key that is in use. ``now`` is the time, made of one
    value. ``over`` deletes some rows of a table, by its primary key, whose time is over.
    """

    in_use: tuple[str, ...]
    now: str = "?"
    over: str = """DELETE FROM {table} WHERE ({names}) IN
    (SELECT {names} FROM {table} WHERE until<={now} ORDER BY until LIMIT {limit})"""

    def delete_over(self, db: Database, table: str, clock: int | None, limit: int = SWEEP) -> None:
        """Delete some rows of *table* whose time is over, whoever put them there."""
        names = "prefix, name" if table == "swap" else "prefix, key, task, done"
        over = self.over.format(table=table, names=names, now=self.now, limit=limit)
        db.execute(over, (clock,))


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
        answer = self._run(f"SELECT holders, {STATE} FROM state WHERE prefix=? AND key=?")

        def key() -> KeyState:
            row = answer.fetchone()
            return self._key(_records(Holder, row[0]), row[1:]) if row else KeyState()

        return key

    def _key(self, holders: tuple[Holder, ...], row: Sequence[Any]) -> KeyState:
        grants, cooling, hold, parked, paused, self._due = row
        return KeyState(
            holders,
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

    def put_off(self, delay: int, clock: int | None) -> None:
        """Make the key due in *delay* microseconds, whatever is in it."""
        prefix, key = self._at
        which, name = "key=?", cast("object", key)
        if isinstance(name, str) and not is_text(name):
            which, name = "key=CAST(? AS TEXT)", name.encode("utf-8", "surrogateescape")
        update = f"UPDATE state SET due={self._dialect.now} + ? WHERE prefix=? AND {which}"
        self._db.execute(update, (clock, delay, prefix, name))

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
        for dead in change.dead:
            self._run(_PUT_DEAD, *_of_dead(dead), message or None, *self._at, dead.task, b"")
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

    def ask_dead(self, task: str) -> Cursor:
        """The dead letter of *task*, for :meth:`_dead`."""
        return self._run(f"{LETTER} WHERE prefix=? AND key=? AND task=?", task)

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
        self._dialect.delete_over(self._db, "past", self.now)
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


def _body(value: object) -> bytes:
    """A message as it was written; of another type it is none."""
    return value if isinstance(value, bytes) else b""


def dead_message(row: tuple[Any, ...]) -> DeadMessage:
    key, body, task, *_ = row
    dead = dead_or_unreadable(_shown(task), lambda: _dead(row))
    return DeadMessage(_shown(key), dead, _body(body))


def _shown(name: object) -> str:
    """A name for people, which may be no UTF-8."""
    raw = name.encode("utf-8", "surrogateescape") if isinstance(name, str) else name
    return raw.decode("utf-8", "backslashreplace") if isinstance(raw, bytes) else str(raw)
