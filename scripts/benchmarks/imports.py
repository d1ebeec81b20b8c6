"""What a process that only publishes has to import: processor time and modules, above Celery's.

Each process is a fresh one. It makes an application, defines a task and publishes one message to
Redis, so it has imported Celery, kombu and redis-py, whoever's task it is.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from scripts.benchmarks.measure import percentile, take_turns

ROUNDS = 15

_PLAIN = """
import sys
from celery import Celery
app = Celery(broker=sys.argv[1])
@app.task(name="report")
def report(day): ...
"""

_OURS = """
import sys
from celery import Celery
from celery_dlock import locked_task
app = Celery(broker=sys.argv[1])
app.conf.dlock_url = sys.argv[1]
@locked_task("day:{{day}}", app=app, name="report", unique={unique!r})
def report(day): ...
"""

_PUBLISH = """
report.delay(int(sys.argv[2]))
print(len(sys.modules))
"""

#: What is compared, the first with the others.
PROCESSES = {
    "a plain task": _PLAIN,
    "a locked task": _OURS.format(unique=None),
    "a unique task": _OURS.format(unique="done"),
}


@dataclass(frozen=True, slots=True)
class Spent:
    """What one process took: seconds of a processor, and the modules it had in the end."""

    seconds: float
    modules: int


def show_imports(console: Console, url: str) -> None:
    """One table; each row is compared with the first, round by round."""
    processes = {name: _process(code + _PUBLISH, url) for name, code in PROCESSES.items()}
    spent = take_turns(processes, ROUNDS)
    first = next(iter(spent.values()))
    title = f"A fresh process that publishes once, {ROUNDS} rounds in turns"
    columns = ("", "ms of processor", "of the first", "modules", "of the first")
    table = Table(*columns, title=title, title_justify="left", min_width=76)
    for name, turns in spent.items():
        ratios = sorted(turn.seconds / one.seconds for turn, one in zip(turns, first, strict=True))
        spread = f"{percentile(ratios, 0.5):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        seconds = percentile([turn.seconds for turn in turns], 0.5)
        modules = turns[0].modules
        share = f"{modules / first[0].modules:.2f}"
        table.add_row(name, f"{seconds * 1000:.0f}", spread, f"{modules}", share)
    console.print(table)


def _process(code: str, url: str) -> Callable[[], Spent]:
    turns = iter(range(sys.maxsize))

    def run() -> Spent:
        command = [sys.executable, "-c", code, url, f"{next(turns)}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            modules = int(process.stdout.read())
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        return Spent(usage.ru_utime + usage.ru_stime, modules)

    return run
