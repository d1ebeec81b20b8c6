"""What beats did under each fault, as tables for people."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from scripts.benchmarks.beat_counts import Counts
from scripts.benchmarks.beat_faults import FAULTS
from scripts.benchmarks.beats import CONTESTANTS, Fared, compare
from tests.services.redis import RedisServer

#: How often each fault is tried; ticks of all times are added up.
TIMES = 2

MEANING = (
    "Due: one tick for each interval that has gone by. Lost: nothing was executed for it. Doubled: "
    "executed a second time. Silent: the longest time from one tick to the next, of any entry; "
    "where another beat takes over, from the last of the old one to the first of the new one. "
    "Ended: how often a beat ended by itself; a supervisor starts it again after a second."
)


def show_beats(console: Console, folder: Path, server: RedisServer) -> None:
    """Each fault in its turn. *server* is one like those that are used."""
    for number, fault in enumerate(FAULTS):
        times = [compare(folder / f"{number}-{n}", fault, CONTESTANTS) for n in range(TIMES)]
        console.print(table(fault.name, list(zip(*times, strict=True))))
    console.print(MEANING)
    console.print(surroundings(server))


def table(title: str, rows: Sequence[Sequence[Fared]]) -> Table:
    """Each row is what one contestant did, time after time."""
    made = Table(title=title, title_justify="left", min_width=76)
    for column in ("", "due", "lost", "doubled", "silent s", "ended"):
        made.add_column(column, justify="right" if column else "left")
    for row in rows:
        counts = sum((fared.counts for fared in row), Counts())
        numbers = (counts.due, counts.lost, counts.doubled)
        ends = sum(fared.ends for fared in row)
        made.add_row(row[0].contestant, *map(str, numbers), _silent(row), str(ends))
    return made


def surroundings(server: RedisServer) -> str:
    """Versions and machine, for whoever compares figures."""
    packages = ("celery-dlock", "celery", "celery-redbeat", "redis")
    parts = [f"{name} {version(name)}" for name in packages]
    server_version = server.info("server")["redis_version"]
    parts += [f"Redis {server_version}", f"Python {platform.python_version()}"]
    return f"{', '.join(parts)}, {os.cpu_count()} processors"


def _silent(row: Sequence[Fared]) -> str:
    times = sorted(row, key=lambda fared: fared.silent)
    if all(fared.to_the_end for fared in times):
        return f"over {times[0].silent:.1f}"
    shown = [f"{'over ' if fared.to_the_end else ''}{fared.silent:.1f}" for fared in times]
    return shown[0] if shown[0] == shown[-1] else f"{shown[0]} to {shown[-1]}"
