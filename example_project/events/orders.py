"""The orders database: what the events of an order add up to, and a log of who wrote when.

Nothing in here knows of locks. The tables of the fence live in the same database, because the
check belongs to the transaction that writes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path

from celery_dlock import fencing

SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (
    order_id INTEGER PRIMARY KEY,
    state    TEXT NOT NULL,
    latest   INTEGER NOT NULL,  -- the sequence of the event that the state comes from
    events   INTEGER NOT NULL,
    balance  INTEGER NOT NULL   -- in cents
);
CREATE TABLE IF NOT EXISTS runs (
    event_id TEXT NOT NULL,
    order_id INTEGER NOT NULL,
    token    INTEGER NOT NULL,
    worker   INTEGER NOT NULL,  -- the process
    held     INTEGER NOT NULL,  -- the lock could be trusted until the end
    applied  INTEGER NOT NULL,  -- 0: the event had been applied before
    started  REAL NOT NULL,     -- seconds on the host's monotonic clock
    ended    REAL NOT NULL
);
"""

APPLY = """
INSERT INTO orders (order_id, state, latest, events, balance) VALUES (?, ?, ?, 1, ?)
ON CONFLICT (order_id) DO UPDATE SET
    state   = CASE WHEN excluded.latest > latest THEN excluded.state ELSE state END,
    latest  = max(latest, excluded.latest),
    events  = events + 1,
    balance = balance + excluded.balance
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a task that passed the fence, as it is written in the log."""

    event_id: str
    order_id: int
    token: int
    worker: int
    held: bool
    applied: bool
    started: float
    ended: float


def create(file: Path) -> None:
    """Make the database *file*; nothing happens where it is there already."""
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(SCHEMA)
        fencing.create_table(db)


@contextmanager
def transaction(file: Path) -> Iterator[sqlite3.Connection]:
    """One transaction: committed at the end of the block, rolled back by an exception."""
    with closing(sqlite3.connect(file, timeout=30, isolation_level="IMMEDIATE")) as db, db:
        yield db


def apply(db: sqlite3.Connection, order_id: int, sequence: int, kind: str, amount: int) -> None:
    """Apply an event to its order; events of one order may come in any order."""
    db.execute(APPLY, (order_id, kind, sequence, amount))


def log(db: sqlite3.Connection, run: Run) -> None:
    """Write *run* down."""
    db.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", astuple(run))
