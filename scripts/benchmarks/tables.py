"""``python -m scripts.benchmarks.tables SECONDS``: what the tables on PostgreSQL grow to.

Two processes take a hot key from each other, with a queue behind it, while two others take and
release ten thousand keys one after the other. Nothing is vacuumed but by the server itself.
"""

from __future__ import annotations

import itertools
import multiprocessing
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import ParamSpec, TypeVar

from rich.console import Console
from rich.table import Table

from celery_dlock.core.state import Claim, Outcome, Run, WaitMode
from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.postgresql.store import PostgresqlBackend
from tests.services.postgresql import PostgresqlServer
from tests.services.require import require

P = ParamSpec("P")
T = TypeVar("T")

#: Processes of each kind, and how many keys the others take.
PROCESSES, KEYS = 2, 10_000

TTL = 30_000_000

#: For so many microseconds the tasks of the hot key are remembered: less than the run takes.
DONE_TTL = 60_000_000

#: Every so many cycles a lease is renewed.
RENEWED = 10

COLUMNS = ("table", "size", "its indices", "live rows", "dead rows", "updates", "HOT", "vacuums")

_TABLES = """SELECT relname, pg_size_pretty(pg_relation_size(relid)),
    pg_size_pretty(pg_indexes_size(relid)), n_live_tup, n_dead_tup, n_tup_upd,
    CASE WHEN n_tup_upd > 0 THEN 100 * n_tup_hot_upd / n_tup_upd || ' %' ELSE '' END,
    autovacuum_count
FROM pg_stat_user_tables WHERE schemaname = 'dlock' AND n_tup_ins > 1 ORDER BY relname"""


def hot(store: PostgresqlBackend, name: str) -> Iterator[None]:
    """One cycle after the other of one key, in which most have to wait."""
    for number in itertools.count():
        task = f"{name}-{number}"
        claim = Claim("hot", task, "1", TTL, wait=WaitMode.QUEUE, done_ttl=DONE_TTL)
        while not isinstance(insist(store.enter, claim, b"m" * 500).verdict, Run):
            insist(store.sweep)
            time.sleep(0.002)
            yield
        if number % RENEWED == 0:
            insist(store.renew, [claim])
        insist(store.leave, claim, Outcome.DONE)
        yield


def many(store: PostgresqlBackend, name: str) -> Iterator[None]:
    """One cycle after the other of keys by chance."""
    chance = random.Random(name)
    for number in itertools.count():
        claim = Claim(f"key {chance.randrange(KEYS)}", f"{name}-{number}", "1", TTL)
        if isinstance(insist(store.enter, claim).verdict, Run):
            if number % RENEWED == 0:
                insist(store.renew, [claim])
            insist(store.leave, claim, Outcome.OVER)
        yield


def insist(ask: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """A machine with too much to do keeps the server from answering in time."""
    while True:
        try:
            return ask(*args, **options)
        except BackendUnavailable:
            time.sleep(0.1)


Cycles = Callable[[PostgresqlBackend, str], Iterator[None]]


def work(
    url: str, cycles: Cycles, name: str, seconds: float, done: multiprocessing.Queue[int]
) -> None:
    """Report how many cycles there were in so many *seconds*."""
    until = time.monotonic() + seconds
    with closing(PostgresqlBackend.from_url(url, BackendOptions())) as store:
        count = 0
        for _ in cycles(store, name):
            count += 1
            if time.monotonic() > until:
                break
    done.put(count)


def show_tables(console: Console, seconds: float) -> None:
    """Work for so many *seconds*, and show what the server says of its tables."""
    with PostgresqlServer(require("postgresql").parent) as server:
        done: multiprocessing.Queue[int] = multiprocessing.Queue()
        processes = [
            multiprocessing.Process(
                target=work, args=(server.url, cycles, f"{cycles.__name__}{n}", seconds, done)
            )
            for cycles in (hot, many)
            for n in range(PROCESSES)
        ]
        for process in processes:
            process.start()
        cycles = sum(done.get() for _ in processes)
        for process in processes:
            process.join()
        server.query("SELECT pg_stat_force_next_flush()")
        title = f"After {seconds:g} s and {cycles:,} cycles"
        table = Table(*COLUMNS, title=title, title_justify="left")
        for line in server.query(_TABLES).splitlines():
            table.add_row(*line.split("|"))
        console.print(table)


if __name__ == "__main__":
    show_tables(Console(width=110), float(sys.argv[1]))
