"""SQLite: against two transactions that write one row each, as durable as ours."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from scripts.benchmarks.cycles import compare, ours, store
from scripts.benchmarks.measure import Measured


def sqlite_cycles(folder: Path, times: int = 300, rounds: int = 5) -> list[Measured]:
    """The first is the floor."""
    with (
        closing(sqlite3.connect(folder / "floor.db", isolation_level=None)) as connection,
        closing(store(f"sqlite:///{folder / 'locks.db'}")) as backend,
    ):
        connection.executescript(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE floor (key, owner)"
        )

        def floor() -> None:
            connection.execute("INSERT INTO floor VALUES ('order:1', 'me')")
            connection.execute("DELETE FROM floor")

        contestants = {"two transactions of one row": floor, "celery_dlock": ours(backend)}
        return compare(contestants, times, rounds)
