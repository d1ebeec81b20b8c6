"""Tasks that ask for the same are alike: worlds that differ only in which is which are one.

Of all the worlds that come of renaming such tasks one stands for all: the one with the smallest
number of its key, and of those the smallest. The task of a retry is nobody's like.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import permutations

from celery_dlock.core.state import KeyState
from tests.model.world import Model, Worker, World, task_of

#: By what task each task is called.
Names = tuple[int, ...]


@dataclass(slots=True)
class Alike:
    """The tasks of *model* that are alike, in all ``orders``; the first one leaves all as it is."""

    model: Model
    orders: list[Names] = field(init=False)
    _smallest: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tasks = self.model.config.tasks
        later = {task.retries_as for task in tasks}
        looks = [(task, n if n in later else -1) for n, task in enumerate(tasks)]
        self.orders = [
            names
            for names in permutations(range(len(tasks)))
            if all(looks[old] == looks[new] for old, new in enumerate(names))
        ]

    @property
    def different(self) -> list[int]:
        """One of each of those that are alike."""
        return sorted({min(names) for names in zip(*self.orders, strict=True)})

    def merged(self, world: World) -> tuple[World, int]:
        """The world that stands for *world*, and the number of the order that leads to it."""
        if len(self.orders) == 1:
            return world, 0
        orders = self._smallest.get(world.key)
        if orders is None:
            numbers = [self._key(world.key, names) for names in self.orders]
            orders = [n for n, key in enumerate(numbers) if key == min(numbers)]
            self._smallest[world.key] = orders
        if len(orders) == 1:
            return self.renamed(world, orders[0]), orders[0]
        found = {order: self.renamed(world, order) for order in orders}
        best = min(orders, key=lambda order: _in_order(found[order]))
        return found[best], best

    def renamed(self, world: World, order: int) -> World:
        """*world* with its tasks in another order."""
        if not order:
            return world
        names = self.orders[order]
        effects = [0] * len(names)
        for old, new in enumerate(names):
            effects[new] = world.effects[old]
        return World(
            self._key(world.key, names),
            tuple(sorted([m - task_of(m) + names[task_of(m)] for m in world.broker])),
            tuple(sorted([_worker(w, names) for w in world.workers])),
            tuple(sorted([names[task] for task in world.sweeper])),
            world.fence,
            tuple(effects),
            frozenset([names[task] for task in world.told]),
            tuple([names[task] for task in world.arrived]),
            tuple([names[task] for task in world.turns]),
            world.left,
            tuple(sorted([names[task] for task in world.unpublished])),
            tuple(sorted([names[task] for task in world.waking])),
            frozenset([names[task] for task in world.revoked]),
            frozenset([names[task] for task in world.dead]),
            self._key(world.replica, names),
            world.called,
        )

    def _key(self, key: int, names: Names) -> int:
        return self.model.keys.altered(key, ("names", *names), partial(_renamed, names))


def _in_order(world: World) -> list[object]:
    return [sorted(part) if isinstance(part, frozenset) else part for part in world]


def _worker(worker: Worker, names: Names) -> Worker:
    if worker.task < 0:
        return worker
    wakes = tuple(sorted([names[task] for task in worker.wakes]))
    return worker._replace(task=names[worker.task], wakes=wakes)


def _renamed(names: Names, state: KeyState) -> KeyState:
    new = {f"t{old}": f"t{name}" for old, name in enumerate(names)}

    def name(task: str) -> str:
        return new.get(task, task)

    return replace(
        state,
        holders=tuple(
            replace(h, task=name(h.task), replaced_by=h.replaced_by and name(h.replaced_by))
            for h in state.holders
        ),
        grants=tuple(replace(g, task=name(g.task), by=name(g.by)) for g in state.grants),
        waiting=tuple(replace(w, task=name(w.task)) for w in state.waiting),
        done=frozenset(map(name, state.done)),
        lost=tuple((name(task), count) for task, count in state.lost),
    )
