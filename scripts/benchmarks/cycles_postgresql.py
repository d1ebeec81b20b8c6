"""PostgreSQL: against two bare transactions of one row, and what people write by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress

import psutil
import psycopg
from rich.console import Console
from rich.table import Table

from scripts.benchmarks.cycles import Cycle, compare, ours, store, timed
from scripts.benchmarks.measure import Measured
from tests.services.pgbouncer import PgBouncer
from tests.services.postgresql import PostgresqlServer
from tests.services.require import require

TIMES, ROUNDS = 200, 10

_TABLE = "CREATE TABLE IF NOT EXISTS floor (key TEXT PRIMARY KEY, owner TEXT)"
_KEY = "'order:1'"


@contextmanager
def _contestants(url: str) -> Iterator[Mapping[str, Cycle]]:
    """The first is the floor: a row that is there while the lock is held."""
    with (
        closing(psycopg.connect(url, autocommit=True, prepare_threshold=None)) as connection,
        closing(store(url)) as backend,
    ):
        connection.execute(_TABLE)
        connection.execute("INSERT INTO floor VALUES ('a row', '') ON CONFLICT DO NOTHING")

        def floor() -> None:
            connection.execute(f"INSERT INTO floor VALUES ({_KEY}, 'me')")
            connection.execute(f"DELETE FROM floor WHERE key = {_KEY}")

        def row_lock() -> None:
            with connection.transaction():
                connection.execute("SELECT FROM floor WHERE key = 'a row' FOR UPDATE")

        def advisory() -> None:
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(42)")

        yield {
            "two transactions of one row": floor,
            "celery_dlock": ours(backend),
            "SELECT … FOR UPDATE": row_lock,
            "pg_advisory_xact_lock": advisory,
        }


def postgresql_cycles(url: str) -> list[Measured]:
    with _contestants(url) as contestants:
        return compare(contestants, TIMES, ROUNDS)


def show_server_costs(console: Console, server: PostgresqlServer) -> None:
    """What the log is given to write, and how long the server computes, for each cycle."""
    table = Table(
        "", "bytes of WAL", "server's CPU, ms", title="PostgreSQL: a cycle", title_justify="left"
    )
    with _contestants(server.url) as contestants:
        for name, cycle in contestants.items():
            timed(cycle, TIMES)
            written, computed = _wal(server), _processor_seconds(server)
            timed(cycle, TIMES)
            table.add_row(
                name,
                f"{(_wal(server) - written) / TIMES:,.0f}",
                f"{(_processor_seconds(server) - computed) / TIMES * 1000:.2f}",
            )
    console.print(table)


def _wal(server: PostgresqlServer) -> int:
    return int(server.query("SELECT pg_current_wal_insert_lsn() - '0/0'"))


def _processor_seconds(server: PostgresqlServer) -> float:
    """Of the processes of all connections; one that has ended is not counted any more."""
    seconds = 0.0
    for process in psutil.Process(server.pid).children():
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            seconds += times.user + times.system
    return seconds


@contextmanager
def measured_servers(*, syncs: bool) -> Iterator[tuple[PostgresqlServer, PgBouncer]]:
    """A server, which waits for its disk if it *syncs*, and a pooler before it."""
    with (
        PostgresqlServer(require("postgresql").parent, syncs=syncs) as server,
        PgBouncer(require("pgbouncer"), server) as pooler,
    ):
        yield server, pooler
