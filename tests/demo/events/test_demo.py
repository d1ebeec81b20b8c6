"""The demo, once as its user starts it: to the end, interrupted, and with the library broken."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.demo.command import Command
from tests.services.until import until

pytestmark = pytest.mark.slow


@pytest.fixture
def demo(tmp_path: Path) -> Command:
    return Command(tmp_path, "example_project.events.demo")


INTERRUPTED = {
    "are starting": signal.SIGINT,
    "killed worker": signal.SIGHUP,
    "stopped worker": signal.SIGTERM,
    "closing": signal.SIGINT,
}


def test_interrupted_anywhere_it_leaves_nothing_and_the_next_run_shows_every_promise(
    demo: Command,
) -> None:
    for moment, number in INTERRUPTED.items():
        with demo.forked() as process:
            until(moment, lambda moment=moment: moment in demo.output)  # type: ignore[misc]
            assert len(demo.processes()) > 3
            os.kill(process.pid, number)
            assert process.wait(60) == 130, demo.output
            demo.check_nothing_is_left()
    with demo.started() as process:
        assert process.wait(200) == 0, demo.output
        demo.check_nothing_is_left()
    assert demo.output.count("  yes  ") == 5
    assert "500 of 500" in demo.output
    assert "killed worker" in demo.output
    assert "goes on after" in demo.output


DEFECTS = {
    "events are rescheduled and do not queue": (
        "import celery_dlock\nfrom celery_dlock import FullJitter, Reschedule\n"
        "celery_dlock.Ordered = lambda **_: Reschedule(FullJitter(base=0.05, cap=0.5))",
        "NO   The events of every order were applied in their order",
    ),
    "the fence lets everybody pass": (
        "from celery_dlock import fencing\nfencing.admit = lambda *_, **__: None",
        "NO   The paused worker's late write was refused",
    ),
    "the lock is given to everybody": (
        "from celery_dlock.core import machine, turns\nmachine.free = turns.free = lambda *_: True",
        "NO   No two tasks of one order overlapped",
    ),
    "effects are not remembered": (
        "from celery_dlock import fencing\nfencing.once = lambda *_: True\n"
        "from celery_dlock.core import machine\nfrom celery_dlock.core.state import Outcome\n"
        "leave = machine.leave\n"
        "machine.leave = lambda s, c, o, n: leave(s, c, Outcome.OVER, n)",
        "NO   Every event was applied exactly once",
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_it_fails_when(demo: Command, defect: str) -> None:
    patch, verdict = DEFECTS[defect]
    with demo.forked(DEFECT=patch) as process:
        assert process.wait(200) == 1, demo.output
    assert verdict in demo.output, demo.output
    assert "what it has left is in" in demo.output
