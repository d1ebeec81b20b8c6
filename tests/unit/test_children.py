"""The thread that acts on what has become of the children."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from celery_dlock.worker.children import Children, processes, soon


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


def test_a_defect_does_not_end_the_thread(
    children: Children, process: subprocess.Popen[bytes]
) -> None:
    said: SimpleQueue[str] = SimpleQueue()
    children.call(fail)
    children.watch(process.pid, fail)
    process.kill()
    children.call(lambda: said.put("still there"))
    assert said.get(timeout=10) == "still there"


def test_a_child_that_dies_as_the_last_thing_is_seen_to(process: subprocess.Popen[bytes]) -> None:
    # Given a thread that is busy when the child dies, and when it is told to end
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
