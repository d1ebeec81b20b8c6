"""``make bench``: ratios, each pair measured in turns within one run; and beats under faults.

Absolute figures are those of the machine and of the moment; what carries over is the ratio of two
lines, and whether a beat loses ticks or doubles them. Nothing here is a test, and no test asserts a
figure of these.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from scripts.benchmarks import throughput
from scripts.benchmarks.beat_table import show_beats
from scripts.benchmarks.bursts import show_bursts
from scripts.benchmarks.cycles_etcd import etcd_cycles
from scripts.benchmarks.cycles_postgresql import (
    measured_servers,
    postgresql_cycles,
    postgresql_turns,
    show_server_costs,
)
from scripts.benchmarks.cycles_redis import redis_cycles, redlock_cycles
from scripts.benchmarks.cycles_sqlite import sqlite_cycles
from scripts.benchmarks.cycles_zookeeper import zookeeper_cycles
from scripts.benchmarks.fence import on_mariadb, on_postgresql, on_sqlite
from scripts.benchmarks.handover import BODY, handover
from scripts.benchmarks.imports import show_imports
from scripts.benchmarks.measure import Measured, percentile
from scripts.benchmarks.price import show_price
from scripts.benchmarks.scrape import show_scrape
from scripts.benchmarks.scripts import show_operations, show_scripts
from scripts.benchmarks.stores import show_stores
from scripts.benchmarks.unique import show_unique
from tests.services.etcd import EtcdServer
from tests.services.mariadb import MariadbServer
from tests.services.postgresql import PostgresqlServer
from tests.services.redis import RedisServer
from tests.services.require import require
from tests.services.zookeeper import ZooKeeperServer

#: How long a body takes in seconds, and how many of them are a round.
BODIES = {0.0: 2000, 0.005: 1000, 0.02: 400}

MEANING = (
    "A locked task asks the store twice, and one that waited is published once more. The shorter "
    "the body, the larger a part of its time that is. Between two bodies of one key lie the first "
    "one's result, its leave, a publish, the broker, the worker's main process, the pool and the "
    "enter. Between two bodies of a serial process that has prefetched lie its result and the pool."
)


def show(console: Console, title: str, unit: str, rows: list[Measured]) -> None:
    """One table; each row is compared with the first."""
    table = Table("", unit, "of the first", title=title, title_justify="left", min_width=76)
    for row in rows:
        ratios = row.ratios_to(rows[0])
        spread = f"{percentile(ratios, 0.5):.0%} ({ratios[0]:.0%} to {ratios[-1]:.0%})"
        table.add_row(row.name, f"{row.rate:,.0f}", "" if row is rows[0] else spread)
    console.print(table)


def show_cycles(console: Console, title: str, rows: list[Measured]) -> None:
    """One table of stores that take and free a lock; each row is compared with the first."""
    columns = ("", "cycles a second", "p50 ms", "p99 ms", "of the first")
    table = Table(*columns, title=title, title_justify="left", min_width=76)
    for row in rows:
        times = [f"{percentile(row.durations, share) * 1000:.2f}" for share in (0.5, 0.99)]
        share = percentile(row.ratios_to(rows[0]), 0.5)
        table.add_row(row.name, f"{row.rate:,.0f}", *times, f"{share:.0%}")
    console.print(table)


def show_handover(console: Console, found: dict[str, list[float]]) -> None:
    title = f"From the end of a body of {BODY * 1000:g} ms to the start of the next, in ms"
    columns = ("", "median", "p99", "÷ queue's", "times")
    table = Table(*columns, title=title, title_justify="left", min_width=76)
    ends = {
        name: [1000 * percentile(gaps, share) for share in (0.5, 0.99)]
        for name, gaps in found.items()
    }
    for name, figures in ends.items():
        ratios = (f"{mine / queue:.1f}" for mine, queue in zip(figures, ends["queue"], strict=True))
        shown = (f"{figure:,.2f}" for figure in figures)
        table.add_row(name, *shown, " / ".join(ratios), f"{len(found[name]):,}")
    console.print(table)


def on_redis(console: Console, folder: Path, url: str) -> None:
    for seconds, tasks in BODIES.items():
        about = f"bodies of {seconds * 1000:g} ms"
        rows = throughput.uncontended(folder, url, seconds, tasks)
        show(console, f"No contention, two processes, {about}", "tasks a second", rows)
        rows = throughput.hot_key(folder, url, seconds, tasks)
        show(console, f"One hot key, two processes, {about}", "tasks a second", rows)
    show_handover(console, handover(folder, url))
    console.print(MEANING)


def cycles(console: Console, folder: Path, redis_url: str) -> None:
    show_cycles(console, "SQLite: take and free, one connection", sqlite_cycles(folder))
    show_operations(console, "SQLite", f"sqlite:///{folder / 'operations.db'}")
    for syncs, disk in ((True, "disk"), (False, "no disk")):
        with measured_servers(syncs=syncs) as (server, pooler):
            title = f"PostgreSQL, {disk}: take and free, one connection"
            show_cycles(console, title, postgresql_cycles(server.url))
            show_cycles(console, f"{title} through PgBouncer", postgresql_cycles(pooler.url))
            show_server_costs(console, server)
            title = f"PostgreSQL, {disk}: from a release to the next holder"
            show_cycles(console, title, postgresql_turns(server.url))
    show_cycles(console, "Redis: take and free, one connection", redis_cycles(redis_url))
    show_scripts(console, redis_url)
    show_cycles(console, "Redlock: take and free", redlock_cycles())
    with ZooKeeperServer() as zookeeper:
        show_cycles(console, "ZooKeeper: take and free, one session", zookeeper_cycles(zookeeper))
        show_operations(console, "ZooKeeper", zookeeper.url)
    with EtcdServer() as etcd:
        show_cycles(console, "etcd: take and free, one channel", etcd_cycles(etcd))
        show_operations(console, "etcd", etcd.url)


def fences(console: Console, folder: Path) -> None:
    show_cycles(console, "The fence in SQLite: transactions", on_sqlite(folder))
    with PostgresqlServer(require("postgresql").parent) as postgresql:
        show_cycles(console, "The fence in PostgreSQL: transactions", on_postgresql(postgresql))
    with MariadbServer(require("mariadb")) as mariadb:
        show_cycles(console, "The fence in MariaDB: transactions", on_mariadb(mariadb))


def main() -> int:
    """All of it, or the parts that are named: ``cycles``, ``stores``, ``fence``,
    ``workers``, ``price``, ``bursts``, ``unique``, ``imports``, ``scrape``, ``beats``.
    """
    console = Console()
    with tempfile.TemporaryDirectory(prefix="dlock-bench-") as name, RedisServer() as server:
        folder = Path(name)
        parts = {
            "cycles": lambda: cycles(console, folder, server.url),
            "stores": lambda: show_stores(console, folder),
            "fence": lambda: fences(console, folder),
            "workers": lambda: on_redis(console, folder, server.url),
            "price": lambda: show_price(console, folder, server.url),
            "bursts": lambda: show_bursts(console, folder, server.url),
            "unique": lambda: show_unique(console, server),
            "imports": lambda: show_imports(console, server.url),
            "scrape": lambda: show_scrape(console, folder, server.url),
            "beats": lambda: show_beats(console, folder, server),
        }
        for part in sys.argv[1:] or parts:
            parts[part]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
