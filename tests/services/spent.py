"""Processor seconds of each test, as a property in the junit file; `scripts/summary.py` adds up.

What a test spends is what this process and all that it has started have spent since the last test:
servers that several tests share, workers, and processes that have ended. Missing is what a process
had spent whose parent was killed before it, and what the process spends that deals the tests out.
The kernel counts in steps of 10 ms, so a sum says more than one test.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest

PROC = Path("/proc")

#: Folders of tests that are held to defects which they have to find.
MACHINES = {"chaos", "contract", "linearizability", "model", "simulation"}

#: What was spent before the first test, which says so.
_BEFORE = pytest.StashKey[float]()


@dataclass(frozen=True, slots=True)
class Process:
    """A line of ``/proc/*/stat``; *ticks* are its own and those of children that it waited for."""

    parent: int
    started: int
    ticks: int

    @classmethod
    def read(cls, pid: int) -> Process | None:
        """None for one that is gone."""
        try:
            with open(f"{PROC}/{pid}/stat", encoding="utf-8") as file:  # noqa: PTH123  (quicker)
                _, _, line = file.read().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            return None
        fields = line.split()
        return cls(int(fields[1]), int(fields[19]), sum(map(int, fields[11:15])))


class ProcessTree:
    """This process and what descends from it, also where the parent in between has ended."""

    def __init__(self) -> None:
        self._tree: dict[int, Process] = {}
        self._others: set[int] = set()

    def spent(self) -> float:
        """Processor seconds since the last call, or since each process began."""
        before, self._tree = self._tree, self._processes()
        counted = sum(
            process.ticks
            for pid, process in before.items()
            if pid in self._tree or process.parent in before  # which has its ticks now
        )
        now = sum(process.ticks for process in self._tree.values())
        return (now - counted) / os.sysconf("SC_CLK_TCK")

    def _processes(self) -> dict[int, Process]:
        """Processes that were not in the tree a moment ago are not read again."""
        pids = {int(name) for name in os.listdir(PROC) if name.isdigit()}  # noqa: PTH208  (quicker)
        self._others &= pids
        read = {pid: Process.read(pid) for pid in pids - self._others}
        alive = {pid: process for pid, process in read.items() if process is not None}
        tree = {pid: process for pid, process in alive.items() if self._known(pid, process)}
        while grown := {
            pid: process
            for pid, process in alive.items()
            if process.parent in tree and pid not in tree
        }:
            tree |= grown
        self._others |= alive.keys() - tree.keys()
        return tree

    def _known(self, pid: int, process: Process) -> bool:
        known = self._tree.get(pid)
        return pid == os.getpid() or (known is not None and known.started == process.started)


_tree = ProcessTree()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    if _wanted(session.config):
        session.config.stash[_BEFORE] = _tree.spent()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    if call.when == "teardown" and _wanted(item.config):
        properties: dict[str, object] = {"processor_seconds": _tree.spent(), "kind": kind_of(item)}
        if before := item.config.stash.get(_BEFORE, None):
            properties["processor_seconds_before"] = before
            del item.config.stash[_BEFORE]
        item.user_properties += properties.items()
    return (yield)


def _wanted(config: pytest.Config) -> bool:
    return bool(config.option.xmlpath) and PROC.is_dir()


def kind_of(item: pytest.Item) -> str:
    """What a test is in the table of processor time: the first kind that fits."""
    folder, _, test = item.nodeid.removeprefix("tests/").partition("/")
    fixtures = {*getattr(item, "fixturenames", ())}
    kinds = {
        "planted defects": item.get_closest_marker("planted")
        or (folder in MACHINES and re.search("_defect_|broken_store", test)),
        "model, simulation, histories": folder in {"model", "simulation", "linearizability"},
        "contract of a store": folder == "contract" and "::Test" in test,
        "at the desk": "desk" in fixtures,
        "real workers in a lab": fixtures & {"lab", "make_lab"},
        "others with a server": item.get_closest_marker("server"),
        "others without a server": True,
    }
    return next(kind for kind, fits in kinds.items() if fits)
