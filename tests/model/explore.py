"""Every world that can be reached is met once, breadth first, and checked.

Breadth first, so the way to a broken rule is the shortest. Of the worlds that differ only in which
of several tasks that are alike is which, one stands for all (:mod:`tests.model.alike`). At the end
the worlds are walked backwards from those where all is done: what is not met on the way is stuck,
and a defect. How often a task is called is counted then, too: no step depends on it, so worlds in
which nothing else differs are one, and are walked again, for each task, with the count of its
calls. What can be left out after the last fault, and why, says :mod:`tests.model.at_once`.
Run ``python -m tests.model.explore --full`` for the large worlds.
"""

from __future__ import annotations

import re
import sys
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import compress, pairwise
from typing import TypeVar
from unittest import mock

from celery_dlock.core import machine, upkeep
from tests.model.alike import Alike, Names
from tests.model.at_once import at_once
from tests.model.checks import Violation, require
from tests.model.config import Config
from tests.model.failover import failover_steps
from tests.model.moves import Next
from tests.model.people import people_steps
from tests.model.surroundings import other_steps
from tests.model.workers import worker_steps
from tests.model.world import Model, World, check_world, goal, most_calls

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Report:
    """What an exploration came to."""

    worlds: int
    steps: int
    keys: int
    operations: int
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


@dataclass(slots=True)
class _Met:
    """The worlds that were met, and the steps between them: those from one world lie together.

    ``first`` is where the steps from a world begin, ``free`` whether a step is no fault, ``called``
    what it says in the world after it. That is no part of a world, for no step asks for it.
    ``order`` is in which of the orders of those that are alike that world was met.
    """

    worlds: list[World]
    parents: array[int] = field(default_factory=lambda: array("l", [-1]))
    first: array[int] = field(default_factory=lambda: array("l", [0]))
    targets: array[int] = field(default_factory=lambda: array("l"))
    free: bytearray = field(default_factory=bytearray)
    called: array[int] = field(default_factory=lambda: array("b"))
    order: array[int] = field(default_factory=lambda: array("b"))


def _explore(config: Config) -> Report:
    model = Model(config)
    alike = Alike(model)
    met = _Met([model.start()])
    worlds, numbers = met.worlds, {met.worlds[0]: 0}
    at = 0
    try:
        for at, world in enumerate(worlds):  # grows while it is walked
            check_world(model, world)
            for _, cost, step in _steps(model, world):
                after = at_once(model, step)
                called = after.called
                if called:
                    after = after._replace(called=0)
                after, order = alike.merged(after)
                number = numbers.get(after)
                if number is None:
                    number = numbers[after] = len(worlds)
                    worlds.append(after)
                    met.parents.append(at)
                met.targets.append(number)
                met.free.append(not cost)
                met.called.append(called)
                met.order.append(order)
            met.first.append(len(met.targets))
        most = max(_most_calls(alike, met, task) for task in alike.different)
        at = _stuck(model, met)
        require(at < 0, "L from here nothing can finish it all", worlds[at])
    except Violation as broken:
        broken.trace = broken.trace or _trace(alike, _way(met.parents, at, worlds))
        raise
    keys = model.keys
    return Report(len(worlds), len(met.targets), len(keys.states), keys.operations, most)


def _steps(model: Model, world: World) -> Iterator[Next]:
    yield from worker_steps(model, world)
    yield from other_steps(model, world)
    yield from people_steps(model, world)
    yield from failover_steps(model, world)


def _stuck(model: Model, met: _Met) -> int:
    """The first world from which no way without a fault leads to a goal; -1 if there is none."""
    worlds, targets = met.worlds, met.targets
    first = array("l", [0]) * (len(worlds) + 1)
    for target in compress(targets, met.free):
        first[target + 1] += 1
    for n in range(len(worlds)):
        first[n + 1] += first[n]
    into, room = array("l", [0]) * first[-1], first[:]
    for source in range(len(worlds)):
        steps = slice(met.first[source], met.first[source + 1])
        for target in compress(targets[steps], met.free[steps]):
            into[room[target]] = source
            room[target] += 1
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


def _most_calls(alike: Alike, met: _Met, task: int) -> int:
    """How often *task* is called at most, on any way: the worlds are walked once more, with it.

    Raises :exc:`~tests.model.checks.Violation` where that is too often.
    """
    model, size, tasks = alike.model, len(met.worlds), len(alike.orders[0])
    # So many calls times all tasks, and what the task is called, times all worlds, and a world.
    pairs, parents = [task * size], array("l", [-1])
    seen = {*pairs}
    bounds = [most_calls(model, task, left) for left in range(model.config.faults + 1)]
    calls = 0
    for at, pair in enumerate(pairs):  # grows while it is walked
        calls, name = divmod(pair // size, tasks)
        mine, number = name + 1, pair % size
        if calls > bounds[met.worlds[number].left]:
            too_often = Violation("S5 one wake a task, and one a fault", met.worlds[number])
            too_often.trace = _trace(
                alike, [met.worlds[p % size] for p in _way(parents, at, pairs)]
            )
            raise too_often
        steps = slice(met.first[number], met.first[number + 1])
        found = zip(met.called[steps], met.order[steps], met.targets[steps], strict=True)
        for called, order, target in found:
            after = calls + 1 if called == mine else 0 if called == -mine else calls
            then = (after * tasks + alike.orders[order][name]) * size + target
            if then not in seen:
                seen.add(then)
                pairs.append(then)
                parents.append(at)
    return max(pairs) // size // tasks


def _way(parents: array[int], at: int, things: list[T]) -> list[T]:
    """What of *things* lies on the way to the one at *at*, by the one before each."""
    way: list[T] = []
    while at >= 0:
        way.append(things[at])
        at = parents[at]
    return way[::-1]


def _trace(alike: Alike, way: list[World]) -> list[str]:
    """The labels of the steps on *way*, with the names that the tasks have at its end."""
    labels = ["start"]
    names = alike.orders[0]
    for before, then in reversed([*pairwise(way)]):
        for label, _, step in _steps(alike.model, before):
            after = at_once(alike.model, step)._replace(called=0)
            merged, order = alike.merged(after)
            if merged == then:
                names = tuple(names[new] for new in alike.orders[order])
                labels.insert(1, re.sub(r"t(\d)", partial(_called, names), label))
                break
    return labels


def _called(names: Names, task: re.Match[str]) -> str:
    return f"t{names[int(task[1])]}"


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
