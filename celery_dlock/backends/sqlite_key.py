"""One key in the SQLite file: load what an operation needs, write back what it changed.

Every statement goes through an index to a bounded number of rows, so an operation costs the same
with ten waiting or with a million.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import TypeVar

from celery_dlock.backends.base import Burial, Wake
from celery_dlock.backends.change import REMEMBER_LOST, Change, difference
from celery_dlock.backends.guard import decode, encode
from celery_dlock.backends.listing import live
from celery_dlock.core.state import (
    WINDOW,
    Cause,
    Claim,
    Dead,
    KeyState,
    Mode,
    Waiting,
    task_id_of,
)
from celery_dlock.core.step import Step
from celery_dlock.core.turns import due
from celery_dlock.errors import BackendUnavailable

V = TypeVar("V")

#: How many expired memories of tasks are deleted whenever one is added.
SWEEP = 16

ENTRY = (
    "SELECT task, mode, slots, rank, arrived, lapses, gives_up FROM waiting "
    "WHERE prefix=? AND key=?"
)

DEAD = "SELECT key, task, mode, slots, cause, at, body FROM dead"


class UnreadableKey(BackendUnavailable):
    """The rows of one key make no sense; those of others may."""


Row = tuple[str, str, int, int, int, int | None, int | None]


def next_token(db: sqlite3.Connection) -> int:
    """The token that a grant in this transaction gets; :func:`spend_token` makes it used."""
    found = db.execute("SELECT next FROM token").fetchone()
    return int(found[0])


def spend_token(db: sqlite3.Connection) -> None:
    db.execute("UPDATE token SET next = next + 1")


def due_keys(db: sqlite3.Connection, prefix: str, now: int, limit: int) -> list[str]:
    """Keys on which something is to be done without anybody coming, the most overdue first."""
    rows = db.execute(
        "SELECT key FROM guard WHERE prefix=? AND due<=? ORDER BY due LIMIT ?", (prefix, now, limit)
    )
    return [row[0] for row in rows]


def next_due(db: sqlite3.Connection, prefix: str) -> int | None:
    """When the next of them will be."""
    row = db.execute("SELECT min(due) FROM guard WHERE prefix=? AND due IS NOT NULL", (prefix,))
    found: int | None = row.fetchone()[0]
    return found


def dead_messages(db: sqlite3.Connection, prefix: str, limit: int) -> list[Burial]:
    """The dead of all keys, the oldest first."""
    rows = db.execute(f"{DEAD} WHERE prefix=? ORDER BY at, key, task LIMIT ?", (prefix, limit))
    return [_burial(row) for row in rows]


def parked_tasks(
    db: sqlite3.Connection, prefix: str, task_ids: Collection[str]
) -> list[tuple[str, str]]:
    """Key and task of each message under any of *task_ids*, wherever it waits."""
    rows = db.execute("SELECT key, task FROM message WHERE prefix=?", (prefix,))
    return [(key, task) for key, task in rows if task_id_of(task) in task_ids]


class KeyRows:
    """The rows of one key within one transaction that began at *now*."""

    def __init__(self, db: sqlite3.Connection, prefix: str, key: str, now: int) -> None:
        self._db = db
        self._at = (prefix, key)
        self._due: int | None = None
        self.now = now

    def load(self, task: str, successor: str = "") -> KeyState:
        """What an operation of *task* may see: the bounded part of the key's state.

        *successor* is who is to have the key after it, if that is known.
        """
        self._run("DELETE FROM waiting WHERE prefix=? AND key=? AND lapses<=?", self.now)
        guard = self.load_guard()
        rows = self._run(f"{ENTRY} ORDER BY rank LIMIT {WINDOW}").fetchall()
        last = self._run("SELECT max(rank) FROM waiting WHERE prefix=? AND key=?").fetchone()[0]
        if len(rows) == WINDOW:
            for named in {task, successor} - {"", *(row[0] for row in rows)}:
                rows += self._run(f"{ENTRY} AND task=?", named).fetchall()
        done = self._past(task, done=1)
        counts = ((t, self._past(t, done=0)) for t in {task, *(h.task for h in guard.holders)})
        return KeyState(
            guard.holders,
            guard.grants,
            self._entries(rows),
            guard.parked,
            first=rows[0][3] if rows else 0,
            last=last or 0,
            done=frozenset({task} if done is not None else ()),
            lost=tuple((t, count) for t, count in sorted(counts) if count),
        )

    def load_guard(self) -> KeyState:
        """Who holds the key and whose turn was called: all that a renewal needs."""
        row = self._run("SELECT held, parked, due FROM guard WHERE prefix=? AND key=?").fetchone()
        if row is None:
            return KeyState()
        try:
            holders, grants = decode(row[0])
        except ValueError as exc:
            raise self._unreadable(exc) from exc
        self._due = row[2]
        return KeyState(holders, grants, parked=row[1])

    def load_all(self) -> KeyState:
        """The whole queue too; ``done`` and ``lost`` are left out."""
        guard, waiting = self.load_guard(), self._entries(self._run(f"{ENTRY} ORDER BY rank"))
        ranks = [entry.rank for entry in waiting] or [0]
        return KeyState(
            guard.holders, guard.grants, waiting, guard.parked, first=ranks[0], last=ranks[-1]
        )

    def load_head(self) -> KeyState:
        """What everybody sees, the same whatever waits behind it; nothing is changed."""
        guard = self.load_guard()
        head = self._entries(self._run(f"{ENTRY} ORDER BY rank LIMIT {WINDOW}"))
        return replace(guard, waiting=live(head, self.now))

    def _entries(self, rows: Iterable[Row]) -> tuple[Waiting, ...]:
        try:
            return tuple(Waiting(row[0], Mode(row[1]), *row[2:]) for row in rows)
        except ValueError as exc:
            raise self._unreadable(exc) from exc

    def _unreadable(self, exc: ValueError) -> UnreadableKey:
        return UnreadableKey(f"the rows of {self._at[1]!r} cannot be read: {exc}")

    def put_off(self, delay: int) -> None:
        """Make the key due in *delay* microseconds, whatever is in it."""
        due_at = self.now + delay
        self._db.execute("UPDATE guard SET due=? WHERE prefix=? AND key=?", (due_at, *self._at))

    def save(
        self, claim: Claim, before: KeyState, step: Step[V], message: bytes | None
    ) -> tuple[Wake, ...]:
        """Write what *step* changed; the wakes that the caller has to publish."""
        change = difference(before, step.state)
        if change.guard or due(step.state) != self._due:  # a renewal leaves it where it was
            self._save_guard(step.state)
        self._save_dead(change, message)
        self._save_queue(change, message)
        wakes = tuple(
            Wake(claim.key, turn.task, self._message(turn.task), turn.ending) for turn in step.wakes
        )
        for task in change.unparked:
            self._run("DELETE FROM message WHERE prefix=? AND key=? AND task=?", task)
        self._save_past(change, claim.done_ttl)
        return wakes

    def save_renewed(self, state: KeyState) -> None:
        """Write a longer lease. The key stays due when it was: a sweep will find it is not yet."""
        held = encode(state.holders, state.grants)
        self._db.execute("UPDATE guard SET held=? WHERE prefix=? AND key=?", (held, *self._at))

    def _save_guard(self, state: KeyState) -> None:
        if state.holders or state.grants or state.parked:
            held = encode(state.holders, state.grants)
            row = (held, state.parked, due(state))
            self._run("INSERT OR REPLACE INTO guard VALUES (?, ?, ?, ?, ?)", *row)
        else:
            self._run("DELETE FROM guard WHERE prefix=? AND key=?")

    def _save_queue(self, change: Change, message: bytes | None) -> None:
        for task in change.gone:
            self._run("DELETE FROM waiting WHERE prefix=? AND key=? AND task=?", task)
        for e in change.came:
            entry = (e.task, e.mode, e.limit, e.rank, e.arrived, e.lapses, e.gives_up)
            self._run("INSERT OR REPLACE INTO waiting VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", *entry)
        for task in change.parked:
            body = message or b""
            self._run("INSERT OR REPLACE INTO message VALUES (?, ?, ?, ?)", task, body)

    def _save_dead(self, change: Change, message: bytes | None) -> None:
        for d in change.dead:
            body = message or (self._message(d.task) if d.task in change.unparked else b"")
            row = (d.task, d.mode, d.limit, d.cause, d.at, body)
            self._run("INSERT OR REPLACE INTO dead VALUES (?, ?, ?, ?, ?, ?, ?, ?)", *row)

    def take_dead(self, task: str) -> Burial | None:
        """The dead message of *task*, off the list."""
        row = self._run(f"{DEAD} WHERE prefix=? AND key=? AND task=?", task).fetchone()
        self._run("DELETE FROM dead WHERE prefix=? AND key=? AND task=?", task)
        return None if row is None else _burial(row)

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
        self._db.execute(
            "DELETE FROM past WHERE (prefix, key, task, done) IN "
            "(SELECT prefix, key, task, done FROM past WHERE until<=? ORDER BY until LIMIT ?)",
            (self.now, SWEEP),
        )
        self._run("INSERT OR REPLACE INTO past VALUES (?, ?, ?, ?, ?, ?)", task, done, lost, until)

    def _past(self, task: str, *, done: int) -> int | None:
        row = self._run(
            "SELECT lost FROM past WHERE prefix=? AND key=? AND task=? AND done=? AND until>?",
            task,
            done,
            self.now,
        ).fetchone()
        return None if row is None else int(row[0])

    def _message(self, task: str) -> bytes:
        row = self._run("SELECT body FROM message WHERE prefix=? AND key=? AND task=?", task)
        return bytes(row.fetchone()[0])

    def _run(self, statement: str, *values: object) -> sqlite3.Cursor:
        return self._db.execute(statement, (*self._at, *values))


def _burial(row: tuple[str, str, str, int, str, int, bytes]) -> Burial:
    key, task, mode, limit, cause, at, body = row
    return Burial(key, Dead(task, Mode(mode), limit, Cause(cause), at), bytes(body))
