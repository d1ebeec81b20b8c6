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
class Seen:
    """What *run* saw at the instant *at*, on the clock that all processes of a machine share."""

    run: str
    task: str
    attempt: int
    key: str
    resource: str
    token: int
    at: float
    trusted: bool
    ending: bool


@dataclass(frozen=True, slots=True)
class Effect:
    """An effect, in the order in which they were committed."""

    task: str
    key: str
    resource: str
    token: int


class Resource:
    """The file in *folder*."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "resource.db"

    def create(self) -> None:
        with self.open() as db:
            db.execute("PRAGMA journal_mode=WAL")  # a writer that is paused keeps no reader out
        with self._transaction() as db:
            fencing.create_table(db)
            db.execute("CREATE TABLE effects (task, key, resource, token)")
            db.execute(
                "CREATE TABLE seen (run, task, attempt, key, resource, token, at, trusted, ending)"
            )

    def look(
        self, run: str, task: str, attempt: int, lease: Lease, *, ending: bool = False
    ) -> None:
        """Note what *run* sees; the instant comes first, so that trust covers it."""
        at = time.monotonic()
        trusted = lease.remaining() > 0
        (term,) = lease.terms
        row = (run, task, attempt, term.key, term.resource, term.token, at, trusted, ending)
        with self._transaction() as db:
            db.execute("INSERT INTO seen VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

    def change(self, task: str, lease: Lease) -> None:
        """The effect, as an application would write it; raises ``StaleFencingToken`` if late."""
        (term,) = lease.terms
        with self._transaction() as db:
            fencing.admit(db, lease)
            if fencing.once(db, task):
                row = (task, term.key, term.resource, term.token)
                db.execute("INSERT INTO effects VALUES (?, ?, ?, ?)", row)

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
