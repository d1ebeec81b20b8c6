"""The shipped worker keeps its promises in every schedule that is played.

A thousand; ``make simulate`` plays as many as you like. Each run is a process of its own, for
its clocks and threads are not those of the tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.services.planted import one_in_every_run
from tests.simulation.defects import DEFECTS

pytestmark = pytest.mark.once

#: A defect is found within so many schedules.
ENOUGH = 600

#: The first schedule shows it.
QUICK = "a chain behind a task that is skipped does not end"


def simulation(*options: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *options],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )


def test_only_the_command_plays_with_clocks_and_loops_of_its_own() -> None:
    """What a test imports of it leaves those of the tests alone."""
    code = """
import asyncio, os, time
before = os.getpid, time.time, time.sleep
import tests.simulation.__main__, tests.simulation.command
asyncio.run(asyncio.sleep(0.001))
assert (os.getpid, time.time, time.sleep) == before
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1001, 2001, 250))
def test_the_shipped_worker_keeps_its_promises_in_every_schedule(seed: int) -> None:
    """``test_lines.py`` plays those before."""
    played = simulation("--seed", str(seed), "--schedules", "250", "--jobs", "2")

    assert played.returncode == 0, played.stdout + played.stderr
    assert "250 schedules" in played.stdout


@pytest.mark.parametrize("seed", ["1", "18", "43"])
def test_a_seed_is_one_schedule(seed: str) -> None:
    told = simulation("--seed", seed).stdout

    assert simulation("--seed", seed, hash_seed="7").stdout == told
    assert told.count("\n") > 100


def test_a_seed_is_one_schedule_whatever_was_played_before_it() -> None:
    def steps(first: int, count: int) -> int:
        told = simulation("--seed", str(first), "--schedules", str(count), "--figures").stdout
        return int(json.loads(told)["steps"])

    assert steps(14, 2) == steps(14, 1) + steps(15, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", one_in_every_run({name: name for name in DEFECTS}, QUICK))
def test_a_defect_of_the_worker_is_found(name: str) -> None:
    options = ("--schedules", str(ENOUGH), "--until-wrong", "--defect", name)
    played = simulation("--seed", str(DEFECTS[name].seed), *options)

    assert "--seed" in played.stderr, played.stdout + played.stderr
