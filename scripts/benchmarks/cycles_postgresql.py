"""PostgreSQL: against two bare transactions of one row, locks by hand, and procrastinate.

procrastinate locks nothing but its own jobs: here one is deferred, fetched and finished by its
functions, as its worker calls them, without the worker and what wakes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from importlib.resources import files
from itertools import count

import psutil
import psycopg
from rich.console import Console
from rich.table import Table

from scripts.benchmarks.cycles import Cycle, compare, ours, store, timed
from scripts.benchmarks.measure import Measured
from scripts.benchmarks.scripts import claim_of, hand_on, park, time_of
from tests.services.pgbouncer import PgBouncer
from tests.services.postgresql import PostgresqlServer
from tests.services.proxy import Proxy, proxy_to
from tests.services.require import require
from tests.services.until import until

Connection = psycopg.Connection[tuple[object, ...]]

TIMES, ROUNDS = 200, 10

_TABLE = "CREATE TABLE IF NOT EXISTS floor (key TEXT PRIMARY KEY, owner TEXT)"
_KEY = "'order:1'"
_ROW_LOCK = "SELECT FROM floor WHERE key = 'a row' FOR UPDATE"
_ADVISORY = "SELECT pg_advisory_xact_lock(42)"

_DEFER = """SELECT procrastinate_defer_jobs_v1(ARRAY[ROW('queue', 'task', 0, 'order:1', NULL, '{}',
    NULL)]::procrastinate_job_to_defer_v1[])"""
_FETCH = "SELECT id FROM procrastinate_fetch_job_v2(NULL, NULL)"
_FINISH = "SELECT procrastinate_finish_job_v1(%s, 'succeeded', true)"

Contestants = Mapping[str, Cycle]


@contextmanager
def _free(url: str) -> Iterator[Contestants]:
    """A lock that nobody else wants. The first is the floor: a row that is there meanwhile."""
    with closing(_connect(url)) as connection, closing(store(url)) as backend:

        def floor() -> None:
            connection.execute(f"INSERT INTO floor VALUES ({_KEY}, 'me')")
            connection.execute(f"DELETE FROM floor WHERE key = {_KEY}")

        def row_lock() -> None:
            with connection.transaction():
                connection.execute(_ROW_LOCK)

        def advisory() -> None:
            with connection.transaction():
                connection.execute(_ADVISORY)

        def job() -> None:
            connection.execute(_DEFER)
            connection.execute(_FINISH, connection.execute(_FETCH).fetchone())

        yield {
            "two transactions of one row": floor,
            "celery_dlock": ours(backend),
            "SELECT … FOR UPDATE": row_lock,
            "pg_advisory_xact_lock": advisory,
            "a job of procrastinate": job,
        }


@contextmanager
def _turns(url: str) -> Iterator[Contestants]:
    """One more comes to wait; what counts is from a release to the next holder."""
    with closing(_connect(url)) as jobs, closing(store(url)) as backend:
        claims = (claim_of(backend, number) for number in count())
        holder = next(claims)
        backend.enter(holder)
        jobs.execute(_DEFER)
        job = jobs.execute(_FETCH).fetchone()

        def turn() -> float:
            nonlocal holder
            before, holder = holder, next(claims)
            park(backend, holder)
            return time_of(partial(hand_on, backend, before, holder))

        def next_job() -> float:
            def finish_and_fetch() -> None:
                nonlocal job
                jobs.execute(_FINISH, job)
                job = jobs.execute(_FETCH).fetchone()

            jobs.execute(_DEFER)
            return time_of(finish_and_fetch)

        yield {"a job of procrastinate": next_job, "celery_dlock": turn}
        jobs.execute(_FINISH, job)


def _blocked(lock: str, holder: Connection, waiter: Connection) -> float:
    """The same for one who waits in the server, with a connection."""
    with ThreadPoolExecutor() as pool:
        holder.execute("BEGIN")
        holder.execute(lock)
        waiter.execute("BEGIN")
        granted = pool.submit(waiter.execute, lock)
        blocks = "SELECT FROM pg_locks WHERE NOT granted"
        until("it waits", lambda: holder.execute(blocks).fetchall())

        def release() -> None:
            holder.execute("COMMIT")
            granted.result()

        seconds = time_of(release)
        waiter.execute("COMMIT")
        return seconds


def _connect(url: str) -> Connection:
    """Its database has the tables."""
    connection = psycopg.connect(url, autocommit=True, prepare_threshold=None)
    connection.execute(_TABLE)
    connection.execute("INSERT INTO floor VALUES ('a row', '') ON CONFLICT DO NOTHING")
    if connection.execute("SELECT to_regclass('procrastinate_jobs')").fetchone() == (None,):
        connection.execute((files("procrastinate.sql") / "schema.sql").read_bytes())
    return connection


def postgresql_cycles(url: str) -> list[Measured]:
    with _free(url) as contestants:
        return compare(contestants, TIMES, ROUNDS)


def postgresql_turns(url: str) -> list[Measured]:
    with (
        _turns(url) as contestants,
        closing(_connect(url)) as holder,
        closing(_connect(url)) as waiter,
    ):
        blocked: Contestants = {
            "SELECT … FOR UPDATE": partial(_blocked, _ROW_LOCK, holder, waiter),
            "pg_advisory_xact_lock": partial(_blocked, _ADVISORY, holder, waiter),
        }
        return compare({**contestants, **blocked}, TIMES // 4, ROUNDS)


def show_server_costs(console: Console, server: PostgresqlServer) -> None:
    """What is sent, what the log is given to write, and how long the server computes."""
    kinds = {"take and free": _free, "wait, take over and free": _turns}
    for kind, opened in kinds.items():
        title = f"PostgreSQL: {kind}"
        table = Table("", "round trips", "bytes of WAL", "server's CPU, ms", title=title)
        with (
            proxy_to(server.port) as proxy,
            opened(server.url.replace(str(server.port), str(proxy.port))) as contestants,
        ):
            for name, cycle in contestants.items():
                _add_costs(table, name, cycle, proxy, server)
        console.print(table)


def _add_costs(
    table: Table, name: str, cycle: Cycle, proxy: Proxy, server: PostgresqlServer
) -> None:
    timed(cycle, TIMES)
    turns, written, computed = proxy.turns, _wal(server), _processor_seconds(server)
    timed(cycle, TIMES)
    table.add_row(
        name,
        f"{(proxy.turns - turns) / TIMES:g}",
        f"{(_wal(server) - written) / TIMES:,.0f}",
        f"{(_processor_seconds(server) - computed) / TIMES * 1000:.2f}",
    )


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
