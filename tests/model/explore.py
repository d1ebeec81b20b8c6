"""Every world that can be reached is met once, breadth first, and checked.

Breadth first, so the way to a broken rule is the shortest. At the end the worlds are walked
backwards from those where all is done: what is not met on the way is stuck, and a defect. Run
``python -m tests.model.explore --full`` for the large worlds.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from unittest import mock

from celery_dlock.core import machine, upkeep
from tests.model.checks import Violation, require
from tests.model.config import Config
from tests.model.deliveries import delivery_steps
from tests.model.people import people_steps
from tests.model.surroundings import other_steps
from tests.model.world import Model, Next, World, check_world, goal


@dataclass(frozen=True, slots=True)
class Report:
    """The size of an exploration."""

    worlds: int
    steps: int
    keys: int
    operations: int


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
        return _explore(Model(config))


def _explore(model: Model) -> Report:
    worlds = [model.start()]
    numbers, parents = {worlds[0]: 0}, [-1]
    sources: dict[int, list[int]] = defaultdict(list)  # of steps without a fault
    at = steps = 0
    try:
        for at, world in enumerate(worlds):  # grows while it is walked
            check_world(model, world)
            for _, cost, then in _steps(model, world):
                steps += 1
                number = numbers.setdefault(then, len(worlds))
                if number == len(worlds):
                    worlds.append(then)
                    parents.append(at)
                if not cost:
                    sources[number].append(at)
        at = _stuck(model, worlds, sources)
        require(at < 0, "L from here nothing can finish it all", worlds[at])
    except Violation as broken:
        broken.trace = _trace(model, worlds, parents, at)
        raise
    return Report(len(worlds), steps, len(model.keys.states), model.keys.operations)


def _steps(model: Model, world: World) -> Iterator[Next]:
    yield from delivery_steps(model, world)
    yield from other_steps(model, world)
    yield from people_steps(model, world)


def _stuck(model: Model, worlds: list[World], sources: dict[int, list[int]]) -> int:
    """The first world from which no way without a fault leads to a goal; -1 if there is none."""
    todo = [n for n, world in enumerate(worlds) if goal(model, world)]
    fine = bytearray(len(worlds))
    for n in todo:
        fine[n] = 1
    for n in todo:  # grows while it is walked
        for source in sources.get(n, ()):
            if not fine[source]:
                fine[source] = 1
                todo.append(source)
    return fine.find(0)


def _trace(model: Model, worlds: list[World], parents: list[int], at: int) -> list[str]:
    labels: list[str] = []
    while parents[at] >= 0:
        before = worlds[parents[at]]
        labels += [label for label, _, then in _steps(model, before) if then == worlds[at]][:1]
        at = parents[at]
    return ["start", *reversed(labels)]


def main(arguments: list[str]) -> None:
    """Explore the worlds of the tests, or with ``--full`` the large ones, and print the counts."""
    from tests.model.configs import FULL, QUICK, SLOW

    total = 0
    began = time.monotonic()
    for config in FULL if "--full" in arguments else QUICK + SLOW:
        since = time.process_time()
        report = explore(config)
        total += report.worlds
        sys.stdout.write(
            f"{config.name:62} {report.worlds:>9,} worlds {report.steps:>10,} steps "
            f"{report.keys:>6,} keys {time.process_time() - since:6.1f} s\n"
        )
        sys.stdout.flush()
    sys.stdout.write(f"{total:,} worlds in {time.monotonic() - began:.0f} s, no rule broken\n")


if __name__ == "__main__":
    main(sys.argv[1:])
