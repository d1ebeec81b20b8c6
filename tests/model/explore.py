"""Every world that can be reached is met once, breadth first, and checked.

Breadth first, so the way to a broken rule is the shortest. At the end the worlds are walked
backwards from those where all is done: what is not met on the way is stuck, and a defect.
Run ``python -m tests.model.explore --full`` for the large worlds.
"""

from __future__ import annotations

import sys
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from unittest import mock

from celery_dlock.core import machine, upkeep
from tests.model.checks import Violation, require
from tests.model.config import Config
from tests.model.moves import Next
from tests.model.people import people_steps
from tests.model.surroundings import other_steps
from tests.model.workers import worker_steps
from tests.model.world import Model, World, check_world, goal


@dataclass(frozen=True, slots=True)
class Report:
    """What an exploration came to."""

    worlds: int
    steps: int
    keys: int
    most_calls: int


def explore(config: Config) -> Report:
    """Meet every world of *config*.

    Raises :exc:`~tests.model.checks.Violation` with the shortest way to the first broken rule.
    """
    most_lost = config.most_lost or machine.MAX_LOST_RUNS
    most_calls = config.most_calls or upkeep.WAKES_BEFORE_DEAD
    with (
        mock.patch.object(machine, "MAX_LOST_RUNS", most_lost),
        mock.patch.object(upkeep, "WAKES_BEFORE_DEAD", most_calls),
    ):
        return _explore(config)


def _explore(config: Config) -> Report:
    model = Model(config)
    start = model.start()
    numbers, worlds = {start: 0}, [start]
    parents, sources, targets = array("l", [-1]), array("l"), array("l")
    steps = 0
    at = -1
    try:
        for at, world in enumerate(worlds):  # grows while it is walked
            check_world(model, world)
            for _, cost, after in _steps(model, world):
                steps += 1
                number = numbers.get(after)
                if number is None:
                    number = numbers[after] = len(worlds)
                    worlds.append(after)
                    parents.append(at)
                if not cost:
                    sources.append(at)
                    targets.append(number)
        at = _stuck(model, worlds, sources, targets)
        require(at < 0, "L from here nothing can finish it all", worlds[at])
    except Violation as broken:
        broken.trace = _trace(model, worlds, parents, at)
        raise
    most = max(max(world.calls) for world in worlds)
    return Report(len(worlds), steps, len(model.keys.states), most)


def _steps(model: Model, world: World) -> Iterator[Next]:
    yield from worker_steps(model, world)
    yield from other_steps(model, world)
    yield from people_steps(model, world)


def _stuck(model: Model, worlds: list[World], sources: array[int], targets: array[int]) -> int:
    """The first world from which no way without a fault leads to a goal; -1 if there is none."""
    first = array("l", [0]) * (len(worlds) + 1)
    for target in targets:
        first[target + 1] += 1
    for n in range(len(worlds)):
        first[n + 1] += first[n]
    into, free = array("l", [0]) * len(sources), first[:]
    for source, target in zip(sources, targets, strict=True):
        into[free[target]] = source
        free[target] += 1
    fine = bytearray(len(worlds))
    todo = [n for n, world in enumerate(worlds) if goal(model, world)]
    for n in todo:
        fine[n] = 1
    while todo:
        n = todo.pop()
        for source in into[first[n] : first[n + 1]]:
            if not fine[source]:
                fine[source] = 1
                todo.append(source)
    return fine.find(0)


def _trace(model: Model, worlds: list[World], parents: array[int], at: int) -> list[str]:
    way: list[str] = []
    while at > 0:
        before = parents[at]
        labels = (label for label, _, after in _steps(model, worlds[before]) if after == worlds[at])
        way.append(next(labels))
        at = before
    return ["start", *way[::-1]]


def main(arguments: list[str]) -> None:
    """Explore the worlds of the tests, or with ``--full`` the large ones, and print the counts."""
    from tests.model.configs import FULL, QUICK, SLOW

    total = 0
    began = time.monotonic()
    for config in FULL if "--full" in arguments else QUICK + SLOW:
        since = time.monotonic()
        report = explore(config)
        total += report.worlds
        sys.stdout.write(
            f"{config.name:62} {report.worlds:>9,} worlds {report.steps:>10,} steps "
            f"{report.keys:>6,} keys {time.monotonic() - since:6.1f} s\n"
        )
        sys.stdout.flush()
    sys.stdout.write(f"{total:,} worlds in {time.monotonic() - began:.0f} s, no rule broken\n")


if __name__ == "__main__":
    main(sys.argv[1:])
