"""The store in a file: all processes of one machine, no server.

What it does not give: anything to a second machine, and a network share is one (SQLite's locks do
not hold there). One process writes at a time, each write waits for the disk, and under gevent and
eventlet the whole process waits with it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Self, TypeVar

from celery_dlock.core.checks import duration
from celery_dlock.core.operations import Enter, OnDeadLetter, Operation, Renew
from celery_dlock.core.state import (
    WINDOW,
    Claim,
    KeyState,
    RenewVerdict,
    Run,
    Step,
    Unknown,
)
from celery_dlock.errors import ConfigurationError
from celery_dlock.stores.base import (
    BackendOptions,
    Guarantee,
    Reply,
    Trait,
    wall_clock,
)
from celery_dlock.stores.sql.rows import ENTRY, Database, KeyRows, SqlDialect
from celery_dlock.stores.sql.sqlite_file import DatabaseFile
from celery_dlock.stores.sql.store import RAISE_BAR, SqlBackend
from celery_dlock.stores.stored import as_json
from celery_dlock.stores.unreadable import NONSENSE, naming

logger = logging.getLogger("celery_dlock")

V = TypeVar("V")

BUSY_TIMEOUT = 5.0


class SqliteKeyRows(KeyRows):
    """The rows of one key within one transaction that began at *now*."""

    def apply(self, operation: Operation[V]) -> Reply[V]:
        """Commit what *operation* comes to."""
        before = self.load(operation)
        token = self._next_token(operation)
        step = operation.apply(before, self.now, token)
        if isinstance(step.verdict, Run) and step.verdict.token == token:
            self._db.execute("UPDATE token SET next = ?", (token + 1,))
        return self.commit(operation, before, step)

    def commit(self, operation: Operation[V], before: KeyState, step: Step[V]) -> Reply[V]:
        """Write what *step* changed."""
        messages = self.ask_messages(step)
        rows = messages.fetchall() if messages else []
        change = self.save(operation, before, step)
        wakes = self.wakes(step, change, self.message_of(operation, before), rows)
        return Reply(step.verdict, wakes)

    def renew(self, claim: Claim) -> RenewVerdict:
        """A longer lease. The key stays due when it was: a sweep will find it is not yet."""
        step = Renew(claim).apply(self.ask_key()(), self.now)
        holders = as_json(step.state.holders)
        self._db.execute(
            "UPDATE state SET holders=? WHERE prefix=? AND key=?", (holders, *self._at)
        )
        return step.verdict

    def _next_token(self, operation: Operation[object]) -> int:
        """What a grant made now carries; nothing else is granted one.

        The time, if the counter is behind that: a file that is new, or of a backup, goes on so.
        """
        if not isinstance(operation, Enter):
            return 0
        return max(self.now, int(self._db.execute("SELECT next FROM token").fetchone()[0]))

    def load(self, operation: Operation[object]) -> KeyState:
        """What *operation* may see: the bounded part of the key's state."""
        task, successor = operation.claim.task, operation.claim.successor
        self._run("DELETE FROM waiting WHERE prefix=? AND key=? AND expires<=?", self.now)
        state = self.ask_key()()
        waiting = self._entries(self._run(f"{ENTRY} ORDER BY rank LIMIT {WINDOW}").fetchall())
        first, last = (waiting[0].rank, waiting[-1].rank) if waiting else (0, 0)
        if len(waiting) == WINDOW:  # there may be more, of whom a few matter
            last = self._run("SELECT max(rank) FROM waiting WHERE prefix=? AND key=?").fetchone()[0]
            for named in {task, successor} - {"", *(entry.task for entry in waiting)}:
                waiting += self._entries(self._run(f"{ENTRY} AND task=?", named).fetchall())
        past = self._past({task, *(holder.task for holder in state.holders)})
        dead = self.ask_dead(task).fetchall() if isinstance(operation, OnDeadLetter) else []
        if not (waiting or past or dead):
            return state
        return replace(
            state,
            waiting=waiting,
            first=first,
            last=last,
            done=frozenset({task} if (task, 1) in past else ()),
            lost=tuple((t, lost) for (t, done), lost in sorted(past.items()) if lost and not done),
            dead=self._dead(dead),
        )

    def _past(self, tasks: Collection[str]) -> dict[tuple[str, int], int]:
        """What is remembered of *tasks*: lost runs, by task and by whether it is done."""
        marks = ", ".join("?" * len(tasks))
        rows = self._run(
            "SELECT task, done, lost FROM past WHERE prefix=? AND key=? AND until>? "
            f"AND task IN ({marks})",
            self.now,
            *tasks,
        )
        return {(task, done): int(lost) for task, done, lost in rows.fetchall()}


class SqliteBackend(SqlBackend):
    """Locks in an SQLite file of their own.

    ``sqlite:///file.db`` is relative to the working directory, ``sqlite:////var/lib/file.db`` is
    absolute. The driver option ``timeout`` is how many seconds to wait for another process.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset(
        {
            Trait.MULTI_PROCESS,
            Trait.DURABLE,
            Trait.LEASE_PER_TASK,
            Trait.MONOTONE_FENCING,
            Trait.STRICT_FENCING,
        }
    )
    guarantee: ClassVar[Guarantee] = Guarantee.STRICT
    largest_message: ClassVar[int] = 500_000_000  # half of what SQLite takes by default
    dialect = SqlDialect(in_use=("state", "waiting"))

    def __init__(self, path: Path, options: BackendOptions) -> None:
        if path.is_dir():
            raise ConfigurationError(f"{path} of dlock_url is a folder; name a file in it")
        if not path.parent.is_dir():
            raise ConfigurationError(f"the folder {path.parent} of dlock_url does not exist")
        self._file = DatabaseFile(path, _timeout(options))
        super().__init__(options)
        self._now = options.clock or wall_clock

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> Self:
        scheme, _, rest = url.partition("://")
        host, slash, path = rest.partition("/")
        if scheme != "sqlite" or host or "?" in path:
            raise ConfigurationError(  # not quoted: what stands there may be a password
                "dlock_url is not of the form sqlite:///relative.db or "
                "sqlite:////absolute/path.db; options go to dlock_backend_options"
            )
        if not slash or path in ("", ":memory:"):
            raise ConfigurationError(
                f"{url!r} names no file, as in sqlite:///dlock.db; "
                "for locks within one process use memory://"
            )
        return cls(Path(path).absolute(), options)

    @contextmanager
    def transaction(self, keys: Collection[str] = ()) -> Iterator[tuple[Database, int]]:
        """A transaction in which *keys* are written, and what time it is.

        All is committed at the end, or nothing. The file's lock is that of every key.
        """
        with self._file.transaction() as db:
            yield db, self._now()

    @contextmanager
    def reading(self) -> Iterator[Database]:
        with self.transaction() as (db, _):
            yield db

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

    @contextmanager
    def writing(self, key: str) -> Iterator[KeyRows]:
        with self.transaction([key]) as (db, now):
            yield self._rows(db, key, now)

    def note(self, key: str, token: int, notes: Mapping[str, bytes | None]) -> bool:
        with self.transaction([key]) as (db, _):
            if not db.execute(RAISE_BAR, (self._prefix, key, token)).rowcount:
                return False
            self.put_notes(db, key, notes)
            return True

    def swap(self, name: str, was: bytes | None, becomes: bytes | None, stays: int) -> bytes | None:
        at = (self._prefix, name)
        with self.transaction([name]) as (db, now), naming(name):
            rows = db.execute("SELECT body, until FROM swap WHERE prefix=? AND name=?", at)
            body, until = rows.fetchone() or (b"", 0)
            stands = bytes(body) if until > now else None
            if stands != was:
                return stands
            self.dialect.delete_over(db, "swap", now)
            self.put_swap(db, name, becomes, now, stays)
            return becomes

    def _rows(self, db: Database, key: str, now: int = 0) -> SqliteKeyRows:
        return SqliteKeyRows(db, self.dialect, self._prefix, key, now)

    def now(self) -> int:
        return int(self._now())

    def missing(self) -> str:
        if self._file.path.exists():
            return ""
        return (
            f"there is no lock store {self._file.path}: the first worker makes it, and a relative "
            "path in dlock_url leads elsewhere from another folder"
        )

    def close(self) -> None:
        """Close the file; the next operation opens it again."""
        self._file.close()


def _timeout(options: BackendOptions) -> float:
    unknown = sorted(set(options.driver) - {"timeout"})
    if unknown:
        raise ConfigurationError(
            f"dlock_backend_options for sqlite knows timeout only, got {', '.join(unknown)}"
        )
    timeout = options.driver.get("timeout", BUSY_TIMEOUT)
    return duration("timeout in dlock_backend_options", timeout, zero=True)


def _renewed(rows: SqliteKeyRows, claim: Claim) -> RenewVerdict:
    """One key that cannot be read must not cost the other leases."""
    try:
        return rows.renew(claim)
    except NONSENSE:
        logger.exception("the lease of %r cannot be renewed", claim.key)
        return Unknown()
