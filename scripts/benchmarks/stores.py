"""All stores in one run: what a free key costs, and how soon a key goes to the next one.

Each server is alone on this machine, with the settings that its page advises, and waits for the
disk where those say so; a Redis keeps nothing on disk unless it is said. With ``DLOCK_MEASURED``
in the environment the table goes to that file, too, as the page on the stores shows it.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Thread

from rich.console import Console
from rich.table import Table

from celery_dlock.core.state import Outcome, Run
from celery_dlock.stores.base import LockBackend
from scripts.benchmarks.cycles import ours, store, timed
from scripts.benchmarks.measure import percentile, take_turns
from scripts.benchmarks.scripts import claim_of, hand_on, park, time_of
from tests.services.etcd import EtcdServer
from tests.services.postgresql import PostgresqlServer
from tests.services.redis import RedisServer
from tests.services.redis_cluster import RedisCluster
from tests.services.redis_nodes import running_nodes
from tests.services.redis_sentinel import RedisSentinel
from tests.services.require import require
from tests.services.zookeeper import ZooKeeperServer

#: Cycles a round of one caller, and of each of so many at once; tasks that are handed a key.
CYCLES, CALLERS, EACH, TURNS = 200, 8, 50, 50

HEAD = ("store", "free key, ms", "times Redis", "one caller", "eight", "next one, ms")
_TITLE = "A free key is taken and released, so often a second; the next one takes over (p50 / p99)"


@contextmanager
def running(folder: Path) -> Iterator[Mapping[str, str]]:
    """The URL of each contestant, whose server runs. The second is what others are compared to."""
    with ExitStack() as stack:
        started = stack.enter_context
        yield {
            "memory": "memory://",
            "redis": started(RedisServer()).url,
            "redis, appendfsync always": started(
                RedisServer("--appendonly", "yes", "--appendfsync", "always")
            ).url,
            "redis+sentinel": started(RedisSentinel()).url,
            "redis+cluster": started(RedisCluster()).url,
            "redlock, five nodes": started(running_nodes(5)).url,
            "sqlite": f"sqlite:///{folder / 'compared.db'}",
            "postgresql": started(PostgresqlServer(require("postgresql").parent, syncs=True)).url,
            "etcd": started(EtcdServer("--unsafe-no-fsync=false")).url,
            "zookeeper": started(ZooKeeperServer()).url,
        }


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds of each cycle of one caller, cycles a second of several, seconds of each turn."""

    alone: list[float]
    together: float
    turns: list[float]


def show_stores(console: Console, folder: Path) -> None:
    where = machine()
    rows = list(_rows(compared(folder)))
    table = Table(*HEAD, title=_TITLE, title_justify="left")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    if file := os.environ.get("DLOCK_MEASURED"):
        Path(file).write_text(as_page(rows, where), encoding="utf-8")


def compared(folder: Path, rounds: int = 5) -> dict[str, list[Round]]:
    """What each contestant did in each round, in turns."""
    with running(folder) as urls, ExitStack() as stack:
        stores = {name: stack.enter_context(closing(store(url))) for name, url in urls.items()}
        runs: dict[str, Callable[[], Round]] = {
            name: partial(_round, backend) for name, backend in stores.items()
        }
        take_turns(runs, 1)  # scripts are loaded, connections open
        return take_turns(runs, rounds)


def _round(backend: LockBackend) -> Round:
    return Round(timed(ours(backend), CYCLES), _together(backend), _turns(backend))


def _together(backend: LockBackend) -> float:
    cycles = [ours(backend, f"order:{number}") for number in range(CALLERS)]
    threads = [Thread(target=timed, args=(cycle, EACH)) for cycle in cycles]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return CALLERS * EACH / (time.perf_counter() - began)


def _turns(backend: LockBackend) -> list[float]:
    """From the moment the one leaves to the moment the next has the key, without a broker."""
    first, *others = (claim_of(backend, number) for number in range(TURNS))
    assert isinstance(backend.enter(first).verdict, Run)
    for each in others:
        park(backend, each)
    found = [time_of(partial(hand_on, backend, *two)) for two in pairwise([first, *others])]
    backend.leave(others[-1], Outcome.OVER)
    return found


def _rows(found: Mapping[str, list[Round]]) -> Iterator[tuple[str, ...]]:
    usual = {
        name: [percentile(each.alone, 0.5) for each in rounds] for name, rounds in found.items()
    }
    for name, rounds in found.items():
        pairs = zip(usual[name], usual["redis"], strict=True)
        times = percentile([mine / theirs for mine, theirs in pairs], 0.5)
        alone = percentile([len(each.alone) / sum(each.alone) for each in rounds], 0.5)
        yield (
            name,
            _milliseconds([one for each in rounds for one in each.alone]),
            f"{times:.1f}",
            f"{alone:,.0f}",
            f"{percentile([each.together for each in rounds], 0.5):,.0f}",
            _milliseconds([one for each in rounds for one in each.turns]),
        )


def _milliseconds(seconds: list[float]) -> str:
    return " / ".join(f"{percentile(seconds, share) * 1000:.2f}" for share in (0.5, 0.99))


def machine() -> str:
    """Where and when this is measured, and how busy that machine is."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    load, _, _ = os.getloadavg()
    processors = f"{os.cpu_count()} processors ({model[1] if model else platform.machine()})"
    return f"{datetime.now(UTC):%d %B %Y}, {processors}, load average {load:.1f} before"


def as_page(rows: list[tuple[str, ...]], where: str) -> str:
    """A table for the page, as reStructuredText."""
    cells = [["   * - " + row[0], *("     - " + cell for cell in row[1:])] for row in [HEAD, *rows]]
    lines = "\n".join(line for row in cells for line in row)
    return f"Measured on {where}.\n\n.. list-table::\n   :header-rows: 1\n\n{lines}\n"
