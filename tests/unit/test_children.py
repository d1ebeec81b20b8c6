"""The thread that acts on what has become of the children, and both ways to learn of that."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from queue import SimpleQueue

import psutil
import pytest

from celery_dlock.worker.children import (
    Children,
    PidfdWatcher,
    PollingWatcher,
    ProcessWatcher,
    processes,
    soon,
)
from tests.services.until import until


@pytest.fixture
def children() -> Iterator[Children]:
    made = Children(processes())
    made.start()
    yield made
    made.finish()


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(["sleep", "600"])
    yield started
    started.kill()
    started.wait()


def fail() -> None:
    raise RuntimeError("a defect")


def test_the_last_that_was_said_of_a_child_counts(
    children: Children, process: subprocess.Popen[bytes]
) -> None:
    said: SimpleQueue[str] = SimpleQueue()
    children.watch(process.pid, lambda: said.put("first"))
    children.watch(process.pid, lambda: said.put("second"))
    process.kill()
    assert said.get(timeout=10) == "second"
    children.finish()
    assert said.empty()


def test_a_defect_ends_no_thread(children: Children, process: subprocess.Popen[bytes]) -> None:
    said: SimpleQueue[str] = SimpleQueue()
    children.call(fail)
    children.watch(process.pid, fail)
    process.kill()
    children.call(lambda: said.put("still there"))
    assert said.get(timeout=10) == "still there"


def test_a_child_that_dies_as_the_last_thing_is_seen_to(process: subprocess.Popen[bytes]) -> None:
    busy, go, said = threading.Event(), threading.Event(), SimpleQueue[str]()

    def stay() -> None:
        busy.set()
        go.wait(10)

    children = Children(processes())
    children.start()
    children.watch(process.pid, lambda: said.put("gone"))
    children.call(stay)
    assert busy.wait(10)
    process.kill()
    process.wait()
    threading.Timer(0.1, go.set).start()
    children.finish()
    assert said.get_nowait() == "gone"


def test_where_nobody_watches_it_is_done_at_once() -> None:
    said: list[str] = []
    soon(lambda: said.append("done"))
    assert said == ["done"]


Start = list[subprocess.Popen[bytes]]


@pytest.fixture(params=[PidfdWatcher, PollingWatcher])
def watched(request: pytest.FixtureRequest) -> ProcessWatcher:
    made: ProcessWatcher = request.param()
    return made


@pytest.fixture
def two() -> Iterator[Start]:
    """Two processes that do nothing."""
    started = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    yield started
    for process in started:
        process.kill()
        process.wait()


def gone(watched: ProcessWatcher) -> list[int]:
    return until("somebody is gone", lambda: watched.wait(1.0), timeout=10)


def test_a_killed_child_is_gone_before_it_is_reaped(watched: ProcessWatcher, two: Start) -> None:
    for process in two:
        watched.watch(process.pid)
        watched.watch(process.pid)
    two[1].kill()
    assert gone(watched) == [two[1].pid]
    two[0].kill()
    assert gone(watched) == [two[0].pid]


def test_one_that_was_reaped_before_is_gone(watched: ProcessWatcher, two: Start) -> None:
    two[0].kill()
    two[0].wait()
    watched.watch(two[0].pid)
    assert gone(watched) == [two[0].pid]


def test_a_child_reaped_elsewhere_is_gone(watched: ProcessWatcher, two: Start) -> None:
    watched.watch(two[0].pid)
    two[0].kill()
    two[0].wait()
    assert gone(watched) == [two[0].pid]


def test_one_that_is_stopped_is_not_gone(watched: ProcessWatcher, two: Start) -> None:
    for process in two:
        watched.watch(process.pid)
    two[0].send_signal(signal.SIGSTOP)
    two[1].kill()
    assert gone(watched) == [two[1].pid]
    assert watched.wait(0) == []


def test_a_wait_without_end_is_interrupted(watched: ProcessWatcher, two: Start) -> None:
    watched.watch(two[0].pid)
    waiting = threading.Thread(target=watched.wait, daemon=True)
    waiting.start()
    watched.interrupt()
    waiting.join(10)
    assert not waiting.is_alive()


def test_no_descriptor_is_left_of_one_that_is_gone(two: Start) -> None:
    watched = PidfdWatcher()
    before = psutil.Process().num_fds()
    watched.watch(two[0].pid)
    two[0].kill()
    gone(watched)
    assert psutil.Process().num_fds() == before


def test_a_system_that_cannot_tell_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(processes(), PidfdWatcher)
    monkeypatch.delattr(os, "pidfd_open")
    assert isinstance(processes(), PollingWatcher)
