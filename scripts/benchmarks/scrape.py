"""What metrics cost a worker that is scraped each second, and what each sink costs for an event.

Two workers side by side tell it only on a machine with nothing else to do: less than one percent is
looked for. So the sink is weighed where it works, in processor's time, against all that its process
takes in the same moments; and so is the process that is scraped. The workers are compared, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from celery_dlock.monitoring.prometheus import tally
from scripts.benchmarks.measure import percentile, take_turns
from scripts.benchmarks.stage import Stage, rate, staged
from scripts.benchmarks.weighed import seconds
from tests.monitoring.shop_run import Command
from tests.services.ports import free_ports
from tests.services.prometheus_folder import shared_folder
from tests.services.worker import Worker

FIRST, TASKS = 100, 1000
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Turn:
    """``cpu`` is the worker's for a task, ``sink`` the sink's part of it, ``scrape`` that of the
    other process for each scrape, all in processor's seconds; ``rate`` is in tasks a second.
    """

    cpu: float
    rate: float
    sink: float = 0.0
    scrape: float = 0.0

    @property
    def share(self) -> float:
        """Of what the worker does, and of what the machine could do, once a second."""
        return self.sink / self.cpu + self.scrape / (os.cpu_count() or 1)


def show_scrape(console: Console, folder: Path, url: str) -> None:
    """Two tables."""
    turns = take_turns(
        {
            "no sink": lambda: _turn(folder, url),
            "scraped": lambda: _scraped_turn(folder, url),
        },
        ROUNDS,
    )
    title = f"Tasks without a body, {ROUNDS} rounds of {TASKS}, scraped each second; CPU"
    columns = ("", "µs a task", "the sink's", "µs a scrape", "all of it", "a second")
    table = Table(*columns, title=title, title_justify="left", min_width=76)
    for name, found in turns.items():
        shares = sorted(turn.share for turn in found)
        table.add_row(
            name,
            *(f"{_median(found, field) * 1e6:,.0f}" for field in ("cpu", "sink", "scrape")),
            f"{percentile(shares, 0.5):.2%} ({shares[0]:.2%} to {shares[-1]:.2%})",
            f"{_median(found, 'rate'):,.0f}",
        )
    console.print(table)
    _show_costs(console, url)


def _median(turns: list[Turn], field: str) -> float:
    return percentile([float(getattr(turn, field)) for turn in turns], 0.5)


def _turn(folder: Path, url: str) -> Turn:
    with staged(folder, url) as stage:
        return Turn(*_worked(stage))


def _scraped_turn(folder: Path, url: str) -> Turn:
    with staged(folder, url) as stage:
        stage.config["celery"]["dlock_sinks"] = ["scripts.benchmarks.weighed:Weighed"]
        with shared_folder(stage.folder / "metrics"), _metrics(stage) as scrapes:
            worked = _worked(stage)
        return Turn(*worked, *scrapes)


def _worked(stage: Stage) -> tuple[float, float, float]:
    """Processor's seconds for a task, tasks a second, from a broker that is full; and the sink's
    seconds for a task, of a process that has begun already.
    """
    with stage.worker("prefork", concurrency=2) as worker:
        _send(stage, FIRST)
        stage.notes.wait_for(FIRST)
        time.sleep(2 * tally.gather)
        worker.pause()
        _send(stage, TASKS)
        before, of_sink = _seconds(worker), seconds(stage.folder)
        worker.resume()
        spans = stage.notes.wait_for(FIRST + TASKS)[FIRST:]
        time.sleep(2 * tally.gather)
        cpu, sink = _seconds(worker) - before, seconds(stage.folder) - of_sink
        return cpu / TASKS, rate(spans), sink / TASKS


def _send(stage: Stage, tasks: int) -> None:
    for number in range(tasks):
        stage.send("queued", f"order:{number}", 0.0)


def _seconds(worker: Worker) -> float:
    """Of the processor, in all processes of *worker* so far."""
    main = psutil.Process(worker.pid)
    times = [process.cpu_times() for process in (main, *main.children(recursive=True))]
    return float(sum(t.user + t.system for t in times))


@contextmanager
def _metrics(stage: Stage) -> Iterator[list[float]]:
    """``dlock metrics`` runs and is asked each second; afterwards there is what an answer took."""
    at = f"127.0.0.1:{free_ports(1)[0]}"
    over, answers, took = threading.Event(), [0], list[float]()

    def ask() -> None:
        while not over.wait(1.0):
            with urllib.request.urlopen(f"http://{at}/metrics") as answer:
                answer.read()
            answers[0] += 1

    with Command(stage, "metrics", b"ready: http", "dlock", "metrics", "--listen", at) as command:
        before = _seconds(command)
        thread = threading.Thread(target=ask)
        thread.start()
        try:
            yield took
        finally:
            over.set()
            thread.join()
            took.append((_seconds(command) - before) / max(1, answers[0]))


def _show_costs(console: Console, url: str) -> None:
    with tempfile.TemporaryDirectory() as name, shared_folder(Path(name) / "metrics"):
        command = [sys.executable, "-m", "scripts.benchmarks.sinks", url]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    title = "One event of a task that is not refused, in µs of its thread"
    table = Table("sink", "µs", title=title, title_justify="left", min_width=76)
    for sink, cost in json.loads(told).items():
        table.add_row(sink, f"{cost:.1f}")
    console.print(table)
