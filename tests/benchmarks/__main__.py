"""``make bench``: ratios, each pair measured in turns within one run.

Absolute figures are those of the machine and of the moment; what carries over is the ratio of two
lines. Nothing here is a test, and no test asserts a figure of these.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.benchmarks import cycles, throughput
from tests.benchmarks.handover import BODY, handover
from tests.benchmarks.measure import Measured, percentile
from tests.services.redis import RedisServer

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


def show_handover(console: Console, found: dict[str, list[float]]) -> None:
    title = f"From the end of a body of {BODY * 1000:g} ms to the start of the next, in ms"
    table = Table("", "median", "p99", "times", title=title, title_justify="left", min_width=76)
    for name, gaps in found.items():
        figures = (f"{percentile(gaps, share) * 1000:,.2f}" for share in (0.5, 0.99))
        table.add_row(name, *figures, f"{len(gaps):,}")
    console.print(table)


def on_redis(console: Console, folder: Path, url: str) -> None:
    show(console, "Redis: take and free, one connection", "cycles a second", cycles.redis(url))
    for seconds, tasks in BODIES.items():
        about = f"bodies of {seconds * 1000:g} ms"
        rows = throughput.uncontended(folder, url, seconds, tasks)
        show(console, f"No contention, two processes, {about}", "tasks a second", rows)
        rows = throughput.hot_key(folder, url, seconds, tasks)
        show(console, f"One hot key, two processes, {about}", "tasks a second", rows)
    show_handover(console, handover(folder, url))
    console.print(MEANING)


def main() -> int:
    console = Console()
    with tempfile.TemporaryDirectory(prefix="dlock-bench-") as name:
        folder = Path(name)
        rows = cycles.sqlite(folder)
        show(console, "SQLite: take and free, one connection", "cycles a second", rows)
        if not shutil.which("redis-server"):
            console.print("redis-server is not installed: the comparisons on Redis are left out")
            return 0
        with RedisServer() as server:
            on_redis(console, folder, server.url)
    return 0


if __name__ == "__main__":
    sys.exit(main())
