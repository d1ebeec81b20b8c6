"""A small world around one key: messages at a broker, deliveries of them, and the key's state.

A delivery asks, holds, and leaves; each of these is one step. What a real worker does between
them, and where it can be interrupted there, is for ``tests/simulation`` to play. A call that the
store answers with is published in the same step, or lost with whoever was to publish it.
Everything is a tuple, so a world can be looked up among those that were met before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from celery_dlock.core.state import Claim, Grant, KeyState, Outcome, WaitMode
from tests.model.checks import Violation, require
from tests.model.config import Config, Task
from tests.model.key import Keys, Op

#: A label, the faults it costs, and the world after it.
Next = tuple[str, int, "World"]

#: Phases of a delivery. Those that leave are named after the outcome.
HOLDS = "holds"
ENDS = "ends"  # brings a task to its end that never had its turn
DONE = "done"  # its result is stored, and the store is told next
LOST = "lost"  # the body was aborted, and the message goes back to the queue
UNHEARD = "unheard"  # its answer was lost: what it may have been given is taken back
UNUSED = "unused"  # it was interrupted before the body began
#: No delivery any more: what the store has not heard of its end is said again.
SAYS = {
    "says done": Outcome.DONE,
    "says unused": Outcome.UNUSED,
    "says abandoned": Outcome.ABANDONED,
}
SAYS_DONE, SAYS_UNUSED, SAYS_ABANDONED = SAYS


class Delivery(NamedTuple):
    """A message of *task* that a worker has. *ended*: time, or the store, has taken the lock.

    *changed*: the worker runs the new version of its task.
    """

    phase: str
    task: int
    nonce: int
    ended: bool = False
    changed: bool = False


class World(NamedTuple):
    """Everything there is; tasks are numbers.

    *told* have their results, *unpublished* are still to be published, and *arrived* and *turns*
    are noted until the first fault. *left* is how many faults may still happen.
    """

    key: int
    broker: tuple[int, ...]
    deliveries: tuple[Delivery, ...]
    left: int
    unpublished: tuple[int, ...]
    told: frozenset[int] = frozenset()
    arrived: tuple[int, ...] = ()
    turns: tuple[int, ...] = ()
    revoked: frozenset[int] = frozenset()
    dead: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class Model:
    """A configuration, and what has been worked out about it."""

    config: Config
    keys: Keys = field(init=False)
    names: dict[str, int] = field(init=False)
    claims: dict[tuple[object, ...], Claim] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.keys = Keys(max(1, self.config.most_lost), max(1, self.config.most_calls))
        self.names = {f"t{n}": n for n, _ in enumerate(self.config.tasks)}

    def start(self) -> World:
        tasks = self.config.tasks
        later = {task.retries_as for task in tasks}
        first = [n for n, _ in enumerate(tasks) if n not in later]
        return World(
            key=self.keys.number(KeyState()),
            broker=tuple(n for n in first if not tasks[n].ordered),
            deliveries=(),
            left=self.config.faults,
            unpublished=tuple(n for n in first if tasks[n].ordered),
        )

    def asks(self, delivery: Delivery) -> Task:
        """What the version of the task that *delivery* runs asks for."""
        old = self.config.tasks[delivery.task]
        return old.becomes if delivery.changed and old.becomes else old

    def claim(self, delivery: Delivery, wait: WaitMode | None = None, **more: Any) -> Claim:
        """What *delivery* asks for, in the way of its task or by *wait*."""
        name = (delivery.task, delivery.nonce, delivery.changed, wait, *more.items())
        claim = self.claims.get(name)
        if claim is None:
            spec = self.asks(delivery)
            claim = self.claims[name] = Claim(
                key="k",
                task=f"t{delivery.task}",
                nonce=str(delivery.nonce),
                ttl=1,
                mode=spec.mode,
                limit=spec.limit,
                wait=wait or spec.wait,
                patience=1,
                done_ttl=1,
                cooldown=int(self.config.cooldown),
                gives_up=int(spec.gives_up),
                max_waiting=spec.max_waiting,
                drop_oldest=spec.replaces,
                keep=spec.keep,
                ordered=spec.ordered,
                gives_way=spec.newest,
                supersedes=spec.newest,
                **{"successor": f"t{spec.retries_as}" if spec.reserves else "", **more},
            )
        return claim

    def faulty(self, world: World) -> bool:
        return world.left < self.config.faults

    def can(self, world: World, kind: str) -> bool:
        """Whether the fault *kind* may happen now."""
        return world.left > 0 and kind in self.config.kinds

    def numbers(self, tasks: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(self.names[task] for task in tasks)

    def next_token(self, world: World) -> int:
        return max(self.keys.facts[world.key].tokens, default=0) + 1

    def stored(self, world: World, task: int) -> bool:
        """Whether the store has the message of *task*."""
        return f"t{task}" in self.keys.facts[world.key].carried

    def ends(self, world: World, turn: Grant) -> bool:
        """Whether a delivery is bringing the ending about that *turn* calls for."""
        taker = (self.names[turn.task], turn.taker)
        return any((d.task, str(d.nonce)) == taker for d in world.deliveries)


def after(world: World, op: Op) -> World:
    """*world* with the key as *op* has left it."""
    return world._replace(key=op.key, dead=world.dead.union(op.dead))


def published(world: World, *tasks: int) -> World:
    """*world* with a message of each of *tasks* more at the broker."""
    return world._replace(broker=tuple(sorted((*world.broker, *tasks))))


def taken(world: World, task: int) -> World:
    """*world* with one message of *task* less at the broker."""
    at = world.broker.index(task)
    return world._replace(broker=world.broker[:at] + world.broker[at + 1 :])


def begun(world: World, delivery: Delivery) -> World:
    return world._replace(deliveries=tuple(sorted((*world.deliveries, delivery))))


def ended(world: World, delivery: Delivery) -> World:
    at = world.deliveries.index(delivery)
    return world._replace(deliveries=world.deliveries[:at] + world.deliveries[at + 1 :])


def became(world: World, delivery: Delivery, phase: str, **more: Any) -> World:
    """*world* with *delivery* in another phase."""
    return begun(ended(world, delivery), delivery._replace(phase=phase, **more))


def spent(world: World) -> World:
    """*world* after a fault. From then on nobody asks who came first."""
    return world._replace(left=world.left - 1, arrived=(), turns=())


def check_world(model: Model, world: World) -> None:
    """Check what must hold in every world that can be reached."""
    facts = model.keys.facts[world.key]
    for delivery in world.deliveries:
        if delivery.phase in (HOLDS, DONE, LOST) and not delivery.ended:
            owner = (f"t{delivery.task}", str(delivery.nonce))
            require(owner in facts.held, "S1 only its owner or time takes a lock away", world)
    for task in owed(model, world) - on_the_way(world):
        if not model.stored(world, task):
            raise Violation("S8 nobody has a task that has not ended", world)


def on_the_way(world: World) -> set[int]:
    """The tasks whose message somebody has who is not the store."""
    carried = {d.task for d in world.deliveries if d.phase not in SAYS}
    return carried.union(world.broker, world.unpublished)


def owed(model: Model, world: World) -> set[int]:
    """The tasks that have still to end; not what a crash loses where nobody keeps it."""
    tasks, early = model.config.tasks, model.config.early_ack
    later = {t.retries_as for n, t in enumerate(tasks) if n not in world.told}
    over = world.told | world.dead
    return {
        n
        for n, task in enumerate(tasks)
        if n not in over and n not in later and (task.keep or not early)
    }


def goal(model: Model, world: World) -> bool:
    """Whether all is done and nothing is left over anywhere."""
    empty = model.keys.facts[world.key].empty
    return empty and not (world.deliveries or on_the_way(world) or owed(model, world))
