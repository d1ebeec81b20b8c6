"""The protected resource of a campaign: an SQLite file that only the bodies write to.

``effects`` holds what the tasks did, behind the fence and once a task. ``seen`` holds what each
run saw of its lock, fence or no fence: at an instant, whether the lease could be trusted. Two
runs that trusted the same lock at the same instant are what a lock must not let happen, whoever
was paused or cut off; the fence would hide it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from celery_dlock import Lease, fencing


@dataclass(frozen=True, slots=True)
class Who:
    """A run of an attempt of a task."""

    run: str
    task: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What *run* saw of one of its locks at *at*, on the clock that all processes share.

    A reader has the token 0. The store was asked for the lock not before *asked*.
    """

    run: str
    task: str
    attempt: int
    key: str
    resource: str
    token: int
    at: float
    trusted: bool
    ending: bool
    asked: float = 0.0


@dataclass(frozen=True, slots=True)
class Effect:
    """An effect on a resource, in the order of the commits; *call* is the one that asked for it."""

    task: str
    key: str
    resource: str
    token: int
    call: int = 0


class Resource:
    """The file in *folder*."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "resource.db"

    def create(self) -> None:
        with self.open() as db:
            db.execute("PRAGMA journal_mode=WAL")  # a writer that is paused keeps no reader out
        with self._transaction() as db:
            fencing.create_table(db)
            db.execute("CREATE TABLE effects (task, key, resource, token, call)")
            db.execute(
                "CREATE TABLE seen (run, task, attempt, key, resource, token, at, trusted, ending,"
                " asked)"
            )

    def look(self, who: Who, lease: Lease, *, ending: bool = False) -> None:
        """Note what a run sees; the instant comes first, so that trust covers it."""
        at = time.monotonic()
        trusted = lease.remaining() > 0
        run = (who.run, who.task, who.attempt)
        rows = [
            (*run, t.key, t.resource, t.token, at, trusted, ending, at - t.monotonic() + t.since)
            for t in lease.terms
        ]
        with self._transaction() as db:
            db.executemany("INSERT INTO seen VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def change(self, task: str, lease: Lease, call: int) -> None:
        """The effect, as an application would write it; raises ``StaleFencingToken`` if late."""
        terms = [term for term in lease.terms if term.token]
        with self._transaction() as db:
            if terms:
                fencing.admit(db, lease)
            if fencing.once(db, task, resource="tasks"):
                rows = [(task, t.key, t.resource, t.token, call) for t in terms or lease.terms]
                db.executemany("INSERT INTO effects VALUES (?, ?, ?, ?, ?)", rows)

    def effects(self) -> list[Effect]:
        with self.open() as db:
            return [Effect(*row) for row in db.execute("SELECT * FROM effects ORDER BY rowid")]

    def seen(self) -> list[Seen]:
        """In the order of their instants."""
        with self.open() as db:
            rows = db.execute("SELECT * FROM seen ORDER BY at")
            return [Seen(*row) for row in rows]

    @contextmanager
    def open(self) -> Iterator[sqlite3.Connection]:
        """A connection for the time of the block."""
        with closing(sqlite3.connect(self._path, timeout=60, isolation_level=None)) as db:
            db.execute("PRAGMA synchronous=OFF")  # processes die here, not the machine
            yield db

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self.open() as db:
            db.execute("BEGIN IMMEDIATE")
            with db:
                yield db
