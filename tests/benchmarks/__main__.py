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
from tests.benchmarks.measure import Measured
from tests.services.redis import RedisServer


def show(console: Console, title: str, unit: str, rows: list[Measured]) -> None:
    """One table; each row is compared with the first."""
    table = Table("", unit, "of the first", title=title, title_justify="left", min_width=72)
    for row in rows:
        table.add_row(row.name, f"{row.rate:,.0f}", f"{row.ratio_to(rows[0]):.0%}")
    console.print(table)


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
            rows = cycles.redis(server.url)
            show(console, "Redis: take and free, one connection", "cycles a second", rows)
            rows = throughput.uncontended(folder, server.url)
            title = "Tasks on Redis, empty bodies, every key its own, prefork with 2 processes"
            show(console, title, "tasks a second", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
