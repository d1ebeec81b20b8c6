"""What a lock costs a task that finds its key free: beside a plain task, and one locked by hand.

The worker is stopped while the messages are published, so that it has them all when it goes on. A
contestant is measured in one run: the processor time of its main process and of its children, and
how many bodies began a second. Ratios are taken within each turn.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from scripts.benchmarks.measure import take_turns
from scripts.benchmarks.stage import rate, staged

#: What each contestant's task is called; the others are compared with the lock by hand.
BY_HAND = "redis-py, by hand"
CONTESTANTS = {
    "plain": "plain",
    BY_HAND: "by_hand",
    "locked, by default": "locked",
    "locked, Queue()": "queued",
    'locked, unique="done"': "unique",
}
TASKS, FIRST = 2000, 40
TURNS = 5


@dataclass(frozen=True, slots=True)
class Price:
    """One run: microseconds of processor time a task, and tasks a second."""

    main: float
    children: float
    rate: float

    @property
    def whole(self) -> float:
        return self.main + self.children


def show_price(console: Console, folder: Path, url: str) -> None:
    """Each row is the median of its turns, and so is each ratio."""
    runs = {name: partial(price, folder, url, task) for name, task in CONTESTANTS.items()}
    prices = take_turns(runs, TURNS)
    title = f"No contention, empty bodies, prefork on 2 processes: medians of {TURNS} turns"
    table = Table("", title=title, title_justify="left", min_width=76)
    for column in ("main µs", "child", "both ÷ by hand", "a second", "÷ by hand"):
        table.add_column(column, justify="right")
    for name, own in prices.items():
        costs = _ratios([one.whole for one in own], [one.whole for one in prices[BY_HAND]])
        rates = _ratios([one.rate for one in own], [one.rate for one in prices[BY_HAND]])
        table.add_row(
            name,
            f"{statistics.median(one.main for one in own):.0f}",
            f"{statistics.median(one.children for one in own):.0f}",
            f"{statistics.median(costs):.2f} ({min(costs):.2f} to {max(costs):.2f})",
            f"{statistics.median(one.rate for one in own):,.0f}",
            f"{statistics.median(rates):.2f}",
        )
    console.print(table)


def _ratios(values: Sequence[float], others: Sequence[float]) -> list[float]:
    return [value / other for value, other in zip(values, others, strict=True)]


def price(folder: Path, url: str, name: str) -> Price:
    """One run of the task *name*, each of which has a key of its own."""
    with staged(folder, url) as stage, stage.worker("prefork", concurrency=2) as worker:
        for number in range(FIRST):  # connections are open, and scripts known
            stage.send(name, f"first-{number}", 0.0)
        stage.notes.wait_for(FIRST)
        worker.pause()
        for number in range(TASKS):
            stage.send(name, f"order:{number}", 0.0)
        before = dict(_times(worker.pid))
        worker.resume()
        spans = stage.notes.wait_for(FIRST + TASKS)
        spent = _spent(before, dict(_times(worker.pid)))
        main = spent.pop(worker.pid)
        each = 1e6 / TASKS
        return Price(each * main, each * sum(spent.values()), rate(spans[FIRST:]))


def _times(pid: int) -> Iterator[tuple[int, float]]:
    """Seconds of processor time of the process and of each of its children."""
    main = psutil.Process(pid)
    for process in (main, *main.children(recursive=True)):
        times = process.cpu_times()
        yield process.pid, times.user + times.system


def _spent(before: Mapping[int, float], after: Mapping[int, float]) -> dict[int, float]:
    return {pid: seconds - before[pid] for pid, seconds in after.items()}
