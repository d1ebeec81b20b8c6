"""What the fence costs a transaction of one update: without it, with it, and with ``once``."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pymysql

from celery_dlock import fencing
from scripts.benchmarks.cycles import Cycle, compare
from scripts.benchmarks.measure import Measured
from tests.services.mariadb import MariadbServer
from tests.services.postgresql import PostgresqlServer


def on_sqlite(folder: Path) -> list[Measured]:
    with closing(sqlite3.connect(folder / "fence.db", isolation_level=None)) as connection:
        connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")
        return _transactions(connection)


def on_postgresql(server: PostgresqlServer) -> list[Measured]:
    with closing(psycopg.connect(server.url, autocommit=True)) as connection:
        return _transactions(connection)


def on_mariadb(server: MariadbServer) -> list[Measured]:
    with closing(pymysql.connect(**server.parameters, autocommit=True)) as connection:
        return _transactions(connection)


def _transactions(connection: Any, times: int = 300, rounds: int = 5) -> list[Measured]:
    """The first is the floor."""
    cursor = connection.cursor()
    cursor.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, paid INTEGER NOT NULL)")
    cursor.execute("INSERT INTO orders VALUES (1, 0)")
    fencing.create_table(connection)
    effects = itertools.count()

    def transaction(*before: Callable[[], object]) -> Cycle:
        def cycle() -> None:
            cursor.execute("BEGIN")
            for act in before:
                act()
            cursor.execute("UPDATE orders SET paid = paid + 1 WHERE id = 1")
            cursor.execute("COMMIT")

        return cycle

    def admit() -> None:
        fencing.admit(connection, resource="order:1", fencing_token=1, owner="task:0:0")

    def once() -> None:
        assert fencing.once(connection, f"effect {next(effects)}", resource="shop")

    contestants = {
        "a transaction of one update": transaction(),
        "with admit": transaction(admit),
        "with admit and once": transaction(admit, once),
    }
    return compare(contestants, times, rounds)
