"""A small world around one key: a broker, workers, a sweeper, the resource that is written to.

What a worker does is cut into steps that a crash can fall between::

    deliver  enter  publish each wake  effect  callbacks  result  leave  publish each wake  ack

Beside them people publish, revoke and replay, each wake of which is published by itself.
Everything is a tuple, so a world can be looked up among those that were met before.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from celery_dlock.core.state import Claim, Grant, KeyState, Mode, WaitMode
from tests.model.checks import Violation, require
from tests.model.config import Config, Task
from tests.model.key import Keys

IDLE = ""
LOOK = "look"
ENTER = "enter"
PARK = "park"
RETRY = "retry"
EFFECT = "effect"
RESULT = "result"
CALLBACKS = "callbacks"
LEAVE_DONE = "leave done"
LEAVE_REPEAT = "leave repeat"
LEAVE_UNUSED = "leave unused"
LEAVE_UNHEARD = "leave unheard"
LEAVE_OVER = "leave over"
SAY_DONE = "say done"
SAY_UNUSED = "say unused"
SAY_ABANDONED = "say abandoned"
SAID = "said"
AGAIN = "again"
REQUEUE = "requeue"
SKIP_RESULT = "skip result"
SKIP_CALLBACKS = "skip callbacks"
END_RESULT = "end result"
END_CALLBACKS = "end callbacks"
ACK = "ack"

#: In these a worker holds the key, as far as it knows.
HOLDING = frozenset({RETRY, EFFECT, RESULT, CALLBACKS, LEAVE_DONE, LEAVE_REPEAT})

#: In these its message is on its way to an ``enter``.
ASKING = frozenset({LOOK, ENTER, PARK, AGAIN, REQUEUE})

#: In these it brings a task to its end that never had its turn.
ENDING = frozenset({END_RESULT, END_CALLBACKS, LEAVE_DONE})

#: These are no workers, but what tells the store how a delivery has ended that goes on without it.
SAYING = frozenset({SAY_DONE, SAY_UNUSED, SAY_ABANDONED, SAID})

#: A message is its task, and ``TAG`` times a tag that it shares with copies of itself. No tag: 0.
TAG = 100
#: The tag of a worker whose message was acknowledged by another.
ACKED = -1


class Worker(NamedTuple):
    """One worker process. ``ended``: time, or the store at its word, has taken the lock from it.

    ``changed``: it runs the new version of its task. ``tag`` is that of its message.
    """

    phase: str = IDLE
    task: int = -1
    nonce: int = 0
    slot: int = 0
    token: int = 0
    ended: bool = False
    changed: bool = False
    tag: int = 0
    wakes: tuple[int, ...] = ()


NOBODY = Worker()
#: The number of a key of which nothing is known: the first one that a model meets.
NO_REPLICA = 0


class World(NamedTuple):
    """Everything there is. ``effects`` count by task.

    ``told``, ``revoked`` (with the store's word that they end), ``dead`` and ``unpublished`` are
    tasks; ``waking`` are the wakes that are left to people to publish; ``replica`` is the key as
    the store's replica has it. ``called`` is no part of the world, but of the step to it: 1 for
    task 0 if that was called, -1 if its calls are forgotten.
    """

    key: int
    broker: tuple[int, ...]
    workers: tuple[Worker, ...]
    sweeper: tuple[int, ...]
    fence: tuple[int, ...]
    effects: tuple[int, ...]
    told: frozenset[int]
    arrived: tuple[int, ...]
    turns: tuple[int, ...]
    left: int
    unpublished: tuple[int, ...]
    waking: tuple[int, ...] = ()
    revoked: frozenset[int] = frozenset()
    dead: frozenset[int] = frozenset()
    replica: int = NO_REPLICA
    called: int = 0


#: Where tokens are: the key, its replica, the fence and the workers.
Tokens = tuple[int, int, tuple[int, ...], tuple[Worker, ...]]


@dataclass(slots=True, eq=False)
class Model:
    """A configuration, and what has been worked out about it."""

    config: Config
    keys: Keys = field(init=False)
    names: dict[str, int] = field(default_factory=dict)
    claims: dict[tuple[object, ...], Claim] = field(default_factory=dict)
    settled: dict[Tokens, Tokens] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.keys = Keys(max(1, self.config.most_lost), max(1, self.config.most_calls))

    def start(self) -> World:
        tasks = self.config.tasks
        later = {task.retries_as for task in tasks}
        first = [n for n in range(len(tasks)) if n not in later]
        self.names = {f"t{n}": n for n in range(len(tasks))}
        slots = max((t.limit for t in tasks if t.mode is Mode.EXCLUSIVE), default=1)
        return World(
            key=self.keys.number(KeyState()),
            broker=tuple(n for n in first if not tasks[n].ordered),
            workers=(NOBODY,) * self.config.workers,
            sweeper=(),
            fence=(0,) * slots,
            effects=(0,) * len(tasks),
            told=frozenset(),
            arrived=(),
            turns=(),
            left=self.config.faults,
            unpublished=tuple(n for n in first if tasks[n].ordered),
        )

    def asks(self, worker: Worker) -> Task:
        """What the version of the task that *worker* runs asks for."""
        old = self.config.tasks[worker.task]
        return old.becomes if worker.changed and old.becomes else old

    def claim(self, worker: Worker, wait: WaitMode | None = None, **more: Any) -> Claim:
        """What *worker* asks for, in the way of its task or by *wait*."""
        name = (worker.task, worker.nonce, worker.changed, wait, *more.items())
        found = self.claims.get(name)
        if found is None:
            spec = self.asks(worker)
            found = self.claims[name] = Claim(
                key="k",
                task=f"t{worker.task}",
                nonce=str(worker.nonce),
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
        return found

    def faulty(self, world: World) -> bool:
        return world.left < self.config.faults

    def can(self, world: World, kind: str) -> bool:
        """Whether the fault *kind* may happen now."""
        return world.left > 0 and kind in self.config.kinds

    def numbers(self, tasks: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(self.names[task] for task in tasks)

    def next_token(self, world: World) -> int:
        return max(self._tokens(world), default=0) + 1

    def _tokens(self, world: World) -> set[int]:
        found = set(self.keys.facts[world.key].tokens | self.keys.facts[world.replica].tokens)
        found.update(world.fence)
        found.update(w.token for w in world.workers)
        found.discard(0)
        return found

    def settle(self, world: World) -> World:
        """Number the tokens that are still known anywhere 1, 2, 3, in their order."""
        known = (world.key, world.replica, world.fence, world.workers)
        found = self.settled.get(known)
        if found is None:
            found = self.settled[known] = self._settled(world)
        if found == known:
            return world
        key, replica, fence, workers = found
        return world._replace(key=key, replica=replica, fence=fence, workers=workers)

    def _settled(self, world: World) -> Tokens:
        tokens = self._tokens(world)
        if not tokens or max(tokens) == len(tokens):
            return world.key, world.replica, world.fence, world.workers
        new = {old: n for n, old in enumerate(sorted(tokens), 1)} | {0: 0}
        key, replica = (
            self.keys.altered(n, ("tokens", *sorted(tokens)), lambda state: _renumbered(state, new))
            for n in (world.key, world.replica)
        )
        fence = tuple(new[t] for t in world.fence)
        workers = tuple(sorted(w._replace(token=new[w.token]) for w in world.workers))
        return key, replica, fence, workers

    def concluding(self, world: World, grant: Grant) -> bool:
        """Whether a worker is bringing the ending about that *grant* calls for."""
        taker = (self.names[grant.task], grant.taker)
        return any((w.task, str(w.nonce)) == taker for w in world.workers if w.phase in ENDING)

    def under_way(self, world: World, task: int) -> bool:
        """Whether a message of *task* is on its way to an ``enter``."""
        return (
            any(task_of(m) == task for m in world.broker)
            or task in world.sweeper
            or task in world.waking
            or any(task in w.wakes or (w.task == task and w.phase in ASKING) for w in world.workers)
        )


def _renumbered(state: KeyState, new: dict[int, int]) -> KeyState:
    return replace(state, holders=tuple(replace(h, token=new[h.token]) for h in state.holders))


def seat(world: World, at: int, worker: Worker) -> tuple[Worker, ...]:
    """The workers with *worker* at *at*. They are alike, so their order does not count."""
    return tuple(sorted((*world.workers[:at], worker, *world.workers[at + 1 :])))


def without(world: World, at: int) -> World:
    """*world* without the worker at *at*, who was one too many."""
    return world._replace(workers=(*world.workers[:at], *world.workers[at + 1 :]))


def put(values: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    return (*values[:at], value, *values[at + 1 :])


def add(broker: tuple[int, ...], task: int, tag: int = 0) -> tuple[int, ...]:
    return tuple(sorted((*broker, task + TAG * tag)))


def remove(messages: tuple[int, ...], message: int) -> tuple[int, ...]:
    """*messages* without one that is *message*."""
    at = messages.index(message)
    return messages[:at] + messages[at + 1 :]


def task_of(message: int) -> int:
    return message % TAG


def check_world(model: Model, world: World) -> None:
    """Check what must hold in every world that can be reached."""
    facts = model.keys.facts[world.key]
    for worker in world.workers:
        if worker.phase in HOLDING and not worker.ended:
            name = (f"t{worker.task}", str(worker.nonce))
            require(name in facts.held, "S1 only its owner or time takes a lock away", world)
    require(max(world.effects) <= 1, "S2 one effect a task", world)
    for task in owed(model, world) - on_the_way(world):
        if f"t{task}" not in facts.carried:
            raise Violation("S8 nobody carries a task whose callbacks were not published", world)


def most_calls(model: Model, task: int, left: int) -> int:
    """How often *task* may have been called where *left* faults are left."""
    spec, faults = model.config.tasks[task], model.config.faults - left
    # A second copy of a task that went on as a retry is not known as done: it waits again.
    # So does a task that was called under an older version, which asked for less. And of one that
    # gives way it is called to its end.
    once = spec.retries_as is None and not spec.newest
    most = 1 + faults * (1 if once else 2) + (spec.becomes is not None)
    # A lost lock puts its message back, also when another delivery was just dead-lettered.
    most += model.config.most_lost > 0
    most += model.config.most_calls * (1 + faults) if spec.unknown else 0
    # Who comes too late to its turn is called once more, when the one that was faster is gone.
    return most + (len(model.config.tasks) if spec.unanswered or spec.foreign else 0)


def on_the_way(world: World) -> set[int]:
    """The tasks whose message somebody has who is not the store."""
    carried = {w.task for w in world.workers if w.phase not in SAYING}
    carried |= {task_of(m) for m in world.broker}
    return carried.union(
        world.unpublished, world.sweeper, world.waking, *(w.wakes for w in world.workers)
    )


def owed(model: Model, world: World) -> set[int]:
    """The tasks that have still to be finished; not what a crash loses where nobody keeps it."""
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
    return (
        not on_the_way(world) - {NOBODY.task}
        and model.keys.facts[world.key].empty
        and not owed(model, world)
    )
