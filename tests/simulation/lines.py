"""``python -m tests.simulation.lines``: which lines of the library the schedules run.

What cannot run in them is listed here, with its reason; all else counts. It fails where fewer lines
of a package are run than before, or where something is listed that does run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import celery_dlock

#: Percent of the lines of each package that are to be run.
PACKAGES = {"delivery": 90.0, "worker": 91.0, "messages": 90.0, "locks": 90.0, "publishing": 94.0}

#: By the reason why no schedule has it: functions and classes of a module.
ELSEWHERE: Mapping[str, Mapping[str, Sequence[str]]] = {
    "a thread is struck where it gives way, and not by the system": {
        "delivery/abort.py": (
            *("MainThread", "Thread.prepare", "Thread.send", "Thread.take_back"),
            *("OtherThread.send", "OtherThread.take_back", "Thrown", "_stack_of", "_throw"),
            *("Thread.struck_by", "_repeat_what_is_dropped.hook", "_after_fork_in_child"),
        ),
    },
    "nothing is logged": {
        "delivery/carry_out.py": ("says_more",),
    },
    "the schedule tells which process has ended": {
        "worker/children.py": (
            *("PidfdWatcher", "PollingWatcher", "_has_ended", "_exists", "processes"),
        ),
    },
    "what is refused as a worker starts never works": {
        "worker/startup.py": ("check_aborts",),
    },
    "in which order keys are nested is looked at in tests of users": {
        "locks/lock_order.py": ("LockOrder", "watch", "_patterns", "_place"),
    },
    "no body calls a task eagerly": {
        "delivery/abort.py": ("shielded",),
    },
    "no body is called without its task": {
        "locks/injected.py": ("Injected",),
    },
    "no worker is told to consume another queue": {
        "worker/woken.py": (
            "ConsumeWoken.__init__.add_task_queue",
            "ConsumeWoken.__init__.cancel_task_queue",
        ),
    },
    "the broker of the schedules is not Redis": {
        "worker/woken.py": (
            *("FetchByTurns.__init__", "FetchByTurns.update"),
            *("FetchByTurns.consume", "FetchByTurns.rotate"),
        ),
    },
    "no call has the id of a finished task": {
        "publishing/outbox.py": ("_end_unique_claim",),
    },
    "no canvas goes on to a task that is ordered by publishing": {
        "publishing/outbox.py": ("_note_by_broker",),
    },
    "no failed publish is certain to have sent nothing, and no result goes by RPC": {
        "publishing/call.py": ("_UniqueCall._give_back", "_never_comes"),
    },
    "whether the store takes writes is not asked": {
        "locks/probe.py": ("check_writes", "check_shortcut", "check_rules"),
    },
    "the broker of the schedules takes messages of any size": {
        "messages/refusals.py": ("_base64",),
    },
    "Amazon is asked for its region": {
        "messages/broker_name.py": ("_region_of_this_host",),
    },
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.lines")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--schedules", default="1000")
    told = parser.parse_args()
    wrong = False
    for text, is_wrong in compared(measured(told.seed, told.schedules)):
        sys.stdout.write(f"{text}\n")
        wrong |= is_wrong
    return wrong


def measured(seed: str, schedules: str) -> Mapping[str, Any]:
    """By its name in the package: what coverage says of each file."""
    here = Path(celery_dlock.__file__).parent
    coverage = [sys.executable, "-m", "coverage"]
    options = ["--rcfile=/dev/null", "--concurrency=greenlet"]
    options.append("--source=" + ",".join(str(here / package) for package in PACKAGES))
    with TemporaryDirectory() as folder:
        env = {**os.environ, "PYTHONHASHSEED": "0", "COVERAGE_FILE": f"{folder}/lines"}
        play = ["-m", "tests.simulation", "--seed", seed, "--schedules", schedules]
        subprocess.run([*coverage, "run", *options, *play], check=True, env=env)
        written = f"{folder}/lines.json"
        subprocess.run(
            [*coverage, "json", "-q", "--rcfile=/dev/null", "-o", written], check=True, env=env
        )
        files = json.loads(Path(written).read_text())["files"]
    return {str(Path(name).resolve().relative_to(here)): each for name, each in files.items()}


def compared(files: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """What is to be said of them, and whether that is wrong."""
    apart = {name: set(_elsewhere(name, each)) for name, each in files.items()}
    for name, each in files.items():
        if runs := apart[name] & set(each["executed_lines"]):
            yield f"{name} is listed, and runs: {sorted(runs)}", True
    for package, enough in PACKAGES.items():
        count = Counter[str]()
        for name, each in files.items():
            if name.startswith(f"{package}/"):
                count["run"] += len(each["executed_lines"])
                count["all"] += len(each["executed_lines"]) + len(each["missing_lines"])
                count["apart"] += len(apart[name])
        part = 100 * count["run"] / (count["all"] - count["apart"])
        of_all = 100 * count["run"] / count["all"]
        yield f"{package}: {part:.1f} %, of all lines {of_all:.1f} %", part < enough


def _elsewhere(name: str, told: Mapping[str, Any]) -> Iterator[int]:
    """The lines of a file that cannot run here, but for those that define something."""
    listed = [each for files in ELSEWHERE.values() for each in files.get(name, ())]
    for function, lines in told["functions"].items():
        if any(function == each or function.startswith(f"{each}.") for each in listed):
            yield from (*lines["executed_lines"], *lines["missing_lines"])


if __name__ == "__main__":
    sys.exit(main())
