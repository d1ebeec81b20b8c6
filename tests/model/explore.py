"""Every world around a key that can be reached is met once, breadth first, and checked.

A world has messages at a broker, deliveries of them, and the state of the key. A delivery asks,
holds and leaves; each is one step, and what can go wrong falls between any two of them. What a real
worker does in between is for ``tests/simulation`` to play. At the end the worlds are walked
backwards from those where all is done: what is not met on the way is stuck, and a defect.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from celery_dlock.core.operations import Cancel, Enter, Leave, Operation, PutOnHold, Reap, Renew
from celery_dlock.core.state import (
    Busy,
    Claim,
    Drop,
    End,
    KeyState,
    Mode,
    NotHeld,
    Outcome,
    Park,
    Replaced,
    Run,
    WaitMode,
)
from tests.model.key import AHEAD, NOW, Keys, Op, Violation, is_due, require


@dataclass(frozen=True, slots=True)
class Task:
    """What a task asks for. ``retries_as``: it ends in a retry, which is that other task, and the
    key ``reserves`` its turn; it ``chains`` where that is the next step of a chain, which goes to
    the head of the key. ``becomes``: workers of two versions take its deliveries.
    """

    wait: WaitMode = WaitMode.QUEUE
    mode: Mode = Mode.EXCLUSIVE
    limit: int = 0
    gives_up: bool = False
    max_waiting: int = 0
    replaces: bool = False
    newest: bool = False
    keep: bool = False
    ordered: bool = False
    revocable: bool = False
    retries_as: int | None = None
    reserves: bool = False
    chains: bool = False
    becomes: Task | None = None


@dataclass(frozen=True, slots=True)
class Config:
    """A world of *tasks* in which so many *faults* may happen, of any kind and in any order.

    ``early_ack``: a message is acknowledged as it is delivered. ``hold``: the one fault is a person
    who keeps the key closed for a while.
    """

    name: str
    tasks: tuple[Task, ...]
    faults: int = 0
    workers: int = 2
    early_ack: bool = False
    cooldown: bool = False
    hold: bool = False


class Delivery(NamedTuple):
    """A message that a worker has; *ended*: its lease has. Of one that only *says* how its task
    ended the message is gone.
    """

    phase: str
    task: int
    nonce: int
    ended: bool = False
    changed: bool = False

    @property
    def says(self) -> bool:
        return self.phase.startswith("says")


class World(NamedTuple):
    """Everything there is; *over* are the tasks that have ended, *left* the faults to come."""

    key: int
    broker: tuple[int, ...]
    unpublished: tuple[int, ...]
    left: int
    deliveries: tuple[Delivery, ...] = ()
    over: frozenset[int] = frozenset()
    revoked: frozenset[int] = frozenset()

    def publish(self, *tasks: int) -> World:
        return self._replace(broker=tuple(sorted((*self.broker, *tasks))))

    def taken(self, task: int) -> World:
        at = self.broker.index(task)
        return self._replace(broker=self.broker[:at] + self.broker[at + 1 :])

    def begin(self, delivery: Delivery) -> World:
        return self._replace(deliveries=tuple(sorted((*self.deliveries, delivery))))

    def end(self, delivery: Delivery) -> World:
        at = self.deliveries.index(delivery)
        return self._replace(deliveries=self.deliveries[:at] + self.deliveries[at + 1 :])

    def become(self, delivery: Delivery, phase: str, **more: bool) -> World:
        return self.end(delivery).begin(delivery._replace(phase=phase, **more))

    def ends(self, task: int) -> World:
        return self._replace(over=self.over | {task})


#: A label, whether it is a fault or chance that nobody may wait for, and the world after it.
Next = tuple[str, bool, World]


class Explorer:
    """The steps of one configuration."""

    def __init__(self, config: Config) -> None:
        self.config, self.keys = config, Keys()
        self._claims: dict[tuple[object, ...], Claim] = {}

    def start(self) -> World:
        tasks = self.config.tasks
        later = {task.retries_as for task in tasks}
        first = [n for n, _ in enumerate(tasks) if n not in later]
        broker = tuple(n for n in first if not tasks[n].ordered)
        unpublished = tuple(n for n in first if tasks[n].ordered)
        return World(self.keys.number(KeyState()), broker, unpublished, self.config.faults)

    def steps(self, world: World) -> Iterator[Next]:
        working = sum(not delivery.says for delivery in world.deliveries)
        for task in sorted(set(world.broker)) if working < self.config.workers else ():
            yield from self._ask(world, Delivery("holds", task, self._nonce(world, task)))
        for delivery in sorted(set(world.deliveries)):
            step = self._say if delivery.says else getattr(self, f"_{delivery.phase}")
            yield from step(world, delivery)
            if self._strikes(world):
                yield from self._faults(world, delivery)
        yield from self._people(world)
        yield from self._time(world, self.keys.states[world.key])

    def _strikes(self, world: World) -> bool:
        return world.left > 0 and not self.config.hold

    def _task(self, me: Delivery) -> Task:
        task = self.config.tasks[me.task]
        return task.becomes if me.changed and task.becomes else task

    def _claim(self, me: Delivery, **more: Any) -> Claim:
        name = (me.task, me.nonce, me.changed, *more.items())
        if name not in self._claims:
            task = self._task(me)
            given: dict[str, Any] = {
                "mode": Mode.LIMITED if task.limit else task.mode,
                "limit": task.limit or 1,
                "wait": task.wait,
                "cooldown": int(self.config.cooldown),
                "gives_up": int(task.gives_up),
                "max_waiting": task.max_waiting,
                "drop_oldest": task.replaces,
                "keep": task.keep,
                "ordered": task.ordered,
                "gives_way": task.newest,
                "supersedes": task.newest,
                "successor": f"t{task.retries_as}" if task.reserves else "",
            }
            of = Claim("k", f"t{me.task}", str(me.nonce), ttl=1, patience=1, done_ttl=1)
            self._claims[name] = replace(of, **{**given, **more})
        return self._claims[name]

    def _nonce(self, world: World, task: int) -> int:
        state = self.keys.states[world.key]
        used = {int(h.nonce) for h in state.holders if h.task == f"t{task}"}
        used |= {int(g.taker) for g in state.grants if g.task == f"t{task}" and g.taker}
        used |= {d.nonce for d in world.deliveries if d.task == task}
        return next(n for n in range(1, len(used) + 2) if n not in used)

    def _heard(
        self, world: World, operation: Operation[Any], then: World, label: str
    ) -> Iterator[Next]:
        """*then*, with the key after the operation; who was woken is published, or not."""
        op = self.keys.apply(world.key, operation)
        after = then._replace(key=op.key)
        turns = {g.task for g in self.keys.states[op.key].grants if g.ending is None}
        self._check_chain(world.key, op.key, turns)
        label = f"{label}: {type(op.verdict).__name__}"
        yield label, False, after.publish(*op.wakes)
        if op.wakes and self._strikes(world):
            yield f"{label}, and nobody is woken", True, _spent(after)

    # Asking.

    def _ask(self, world: World, me: Delivery) -> Iterator[Next]:
        for changed in (False, True) if self.config.tasks[me.task].becomes else (False,):
            yield from self._ask_as(world, me._replace(changed=changed))

    def _ask_as(self, world: World, me: Delivery) -> Iterator[Next]:
        claim, early, gone = self._claim(me), self.config.early_ack, world.taken(me.task)
        enter = Enter(claim)
        op = self.keys.apply(world.key, enter)
        revoked = me.task in world.revoked and isinstance(op.verdict, Run)
        require(not revoked, "S9 what is revoked does not run", world)
        label = f"t{me.task} asks as {me.nonce}"
        yield from self._heard(world, enter, self._judged(world, me, op), label)
        if not self._strikes(world):
            return
        if not (early and self._task(me).keep) or isinstance(op.verdict, Run | Park):
            died = (gone if early else world)._replace(key=op.key)
            yield f"{label}, and dies", True, _spent(died)
        for phase in ("unheard", "unused") if claim.has_message else ("unused",):
            waits = gone.begin(me._replace(phase=phase, ended=True))
            yield f"{label}, {phase}", True, _spent(waits._replace(key=op.key))
            if not early:
                yield f"{label}, and the store does not hear it", True, _spent(waits)

    def _judged(self, world: World, me: Delivery, op: Op) -> World:
        gone = world.taken(me.task)
        match op.verdict:
            case Run():
                self._check_chain(world.key, op.key, {f"t{me.task}"})
                return gone.begin(me)
            case Park() | Drop():
                return gone
            case End():
                return gone.begin(me._replace(phase="ends", ended=True))
            case Busy(holder=holder) if self._task(me).wait is WaitMode.NOT or op.verdict.full:
                before = holder and self.config.tasks[int(holder.task[1:])].retries_as
                return (
                    world
                    if before == me.task
                    else gone.begin(me._replace(phase="ends", ended=True))
                )
            case _:
                return world

    # Holding and leaving.

    def _holds(self, world: World, me: Delivery) -> Iterator[Next]:
        verdict = self.keys.apply(world.key, Renew(self._claim(me))).verdict
        gone = isinstance(verdict, NotHeld)
        require(gone == me.ended, "R a lease that has ended stays ended, another is renewed", world)
        if gone or self._strikes(world):
            lost = world.become(me, "lost")
            yield f"t{me.task} loses its lock", not gone, lost if gone else _spent(lost)
        if isinstance(verdict, Replaced):
            yield f"t{me.task} gives way", False, world.become(me, "ends", ended=True)
        successor = self.config.tasks[me.task].retries_as
        ran = world.ends(me.task).become(me, "done")
        if successor is not None and self._task(me).chains:
            yield from self._chain(world, ran, successor)
            return
        yield f"t{me.task} runs", False, ran if successor is None else ran.publish(successor)
        if successor is not None and self._strikes(world):
            unused = world.become(me, "unused", ended=True)
            yield f"the retry of t{me.task} cannot be published", True, _spent(unused)

    def _chain(self, world: World, ran: World, step: int) -> Iterator[Next]:
        """The next *step* goes to the head; where the store does not answer, by the broker, too."""
        claim = self._claim(Delivery("", step, 0), wait=WaitMode.HEAD, ordered=True)
        yield from self._heard(world, Enter(claim), ran, f"t{step} goes to the head")
        if self._strikes(world):
            heard = ran._replace(key=self.keys.apply(world.key, Enter(claim)).key)
            for then in (ran, heard):
                yield f"t{step} goes by the broker", True, _spent(then.publish(step))

    def _ends(self, world: World, me: Delivery) -> Iterator[Next]:
        yield f"t{me.task} ends", False, world.ends(me.task).become(me, "done")

    def _done(self, world: World, me: Delivery) -> Iterator[Next]:
        yield from self._leave(world, me, Outcome.DONE, world.end(me))

    def _lost(self, world: World, me: Delivery) -> Iterator[Next]:
        gone = world.end(me)
        stored = self._task(me).wait is WaitMode.QUEUE
        yield from self._leave(world, me, Outcome.REPEAT, gone if stored else gone.publish(me.task))

    def _leave(self, world: World, me: Delivery, outcome: Outcome, then: World) -> Iterator[Next]:
        leave, label = Leave(self._claim(me), outcome), f"t{me.task} leaves, {outcome}"
        yield from self._heard(world, leave, then, label)
        if self._strikes(world):
            done = outcome is Outcome.DONE
            unsaid = world.end(me) if done else world.end(me).publish(me.task)
            says = "says done" if done else "says unused"
            unsaid = unsaid.begin(Delivery(says, me.task, me.nonce, changed=me.changed))
            heard = unsaid._replace(key=self.keys.apply(world.key, leave).key)
            yield f"{label}, and hears nothing", True, _spent(heard)
            yield f"{label}, and is not heard", True, _spent(unsaid)

    def _unheard(self, world: World, me: Delivery) -> Iterator[Next]:
        claim = self._claim(me, begun=False, successor="")
        yield from self._take_back(world, me, Leave(claim, Outcome.REPEAT))

    def _unused(self, world: World, me: Delivery) -> Iterator[Next]:
        claim = self._claim(me, begun=False)
        outcome = Outcome.UNUSED if claim.has_message else Outcome.OVER
        yield from self._take_back(world, me, Leave(claim, outcome))

    def _take_back(self, world: World, me: Delivery, leave: Leave) -> Iterator[Next]:
        """What was perhaps given goes back, once, and its message is published again."""
        again, label = world.end(me).publish(me.task), f"t{me.task} takes back, {leave.outcome}"
        yield from self._heard(world, leave, again, label)
        yield f"{label}, and is not heard", True, again
        if self.config.tasks[me.task].retries_as is None:  # a time limit may end it meanwhile
            yield from self._heard(world, leave, world.become(me, "ends"), f"{label}, and ends")

    def _say(self, world: World, me: Delivery) -> Iterator[Next]:
        """The store is told in the end; that a child was killed it is told once."""
        once = me.phase == "says abandoned"
        claim = self._claim(me, successor="") if once else self._claim(me, again=True)
        outcome = Outcome(me.phase.removeprefix("says "))
        yield from self._heard(world, Leave(claim, outcome), world.end(me), me.phase)
        if self._strikes(world):
            yield f"{me.phase}, and nobody hears it", True, _spent(world.end(me) if once else world)

    def _faults(self, world: World, me: Delivery) -> Iterator[Next]:
        gone = world.end(me)
        if me.says:
            yield f"who {me.phase} of t{me.task} dies", True, _spent(gone)
            return
        again = gone if self.config.early_ack else gone.publish(me.task)
        yield f"the worker of t{me.task} dies", True, _spent(again)
        if any(h.owner == self._claim(me).owner for h in self.keys.states[world.key].holders):
            says = Delivery("says abandoned", me.task, me.nonce, changed=me.changed)
            yield f"the child of t{me.task} is killed", True, _spent(again.begin(says))
        if not self.config.early_ack:
            yield f"t{me.task} is delivered twice", True, _spent(world.publish(me.task))

    # Without a worker.

    def _people(self, world: World) -> Iterator[Next]:
        for task in world.unpublished:
            claim = self._claim(Delivery("", task, 0), wait=WaitMode.ENQUEUE)
            rest = world._replace(unpublished=tuple(n for n in world.unpublished if n != task))
            yield from self._heard(world, Enter(claim), rest, f"t{task} is published")
        for task, spec in enumerate(self.config.tasks):
            revoke = Cancel("k", f"t{task}")
            may = spec.revocable and task not in world.revoked | world.over
            if may and self.keys.apply(world.key, revoke).verdict:
                revoked = world._replace(revoked=world.revoked | {task})
                yield from self._heard(world, revoke, revoked, f"t{task} is revoked")
        if self.config.hold and world.left:
            hold = PutOnHold("k", "", "a hold", "ann", "why", AHEAD)
            yield from self._heard(world, hold, _spent(world), "a person closes the key")

    def _time(self, world: World, state: KeyState) -> Iterator[Next]:
        owners = {
            (f"t{d.task}", str(d.nonce)): d
            for d in world.deliveries
            if d.phase in ("holds", "done", "lost") and not d.ended
        }
        for at, holder in enumerate(state.holders):
            owner = owners.get((holder.task, holder.nonce))
            then = world if owner is None else world.become(owner, owner.phase, ended=True)
            yield from self._pass(then, "holders", at, "expires", owner is not None)
            yield from self._pass(world, "holders", at, "cools")
        for at, turn in enumerate(state.grants):
            task = int(turn.task[1:])
            comes = task in world.broker or any(
                (d.task, str(d.nonce)) == (task, turn.taker) for d in world.deliveries
            )
            yield from self._pass(world, "grants", at, "due", comes)
            yield from self._pass(world, "grants", at, "gives_up")
        for at, entry in enumerate(state.waiting):
            yield from self._pass(
                world, "waiting", at, "expires", int(entry.task[1:]) in world.broker
            )
            yield from self._pass(world, "waiting", at, "gives_up")
        for at, _ in enumerate(state.cooling):
            yield from self._pass(world, "cooling", at, "until")
        if state.hold is not None and state.hold.until > NOW:
            over = replace(state, hold=replace(state.hold, until=NOW))
            yield "the hold is over", False, world._replace(key=self.keys.number(over))
        if is_due(state):
            yield from self._heard(world, Reap("k"), world, "reap")

    def _pass(
        self, world: World, of: str, at: int, what: str, early: bool = False
    ) -> Iterator[Next]:
        """An instant of the key passes, which is a fault where it is *early*."""
        state = self.keys.states[world.key]
        records = list(getattr(state, of))
        if (getattr(records[at], what) or NOW) <= NOW or (early and not self._strikes(world)):
            return
        task = getattr(records[at], "task", "")
        records[at] = replace(records[at], **{what: NOW})
        later: dict[str, Any] = {of: tuple(records)}
        passed = world._replace(key=self.keys.number(replace(state, **later)))
        yield f"{what} of {task} in {of}", early, _spent(passed) if early else passed

    # What must hold.

    def _check_chain(self, before: int, after: int, chosen: set[str]) -> None:
        """Check that none of those *chosen* comes between two steps of a chain.

        But for whose turn had come before, as the lease of the first step had ended; and for who
        lost a run, and came to the head after the step, if the first step was killed.
        """
        state = self.keys.states[before]
        may = {task for task, _ in state.lost} | {h.task for h in state.holders}
        may |= {g.task for g in state.grants}
        for task, spec in enumerate(self.config.tasks):
            step = f"t{spec.retries_as}"
            waits = spec.chains and all(_waits(self.keys.states[n], step) for n in (before, after))
            own = chosen <= may | {f"t{task}", step}
            require(own or not waits, "S10 nobody comes between two steps of a chain", state)

    def check(self, world: World) -> None:
        state = self.keys.states[world.key]
        held = {(h.task, h.nonce) for h in state.holders if h.expires > NOW}
        for me in world.deliveries:
            owns = me.ended or me.phase not in ("holds", "done", "lost")
            known = owns or (f"t{me.task}", str(me.nonce)) in held
            require(known, "S1 only its owner or time takes a lock away", world)
        stored = {w.task for w in state.waiting if w.parked}
        stored |= {g.task for g in state.grants if g.parked}
        carried = {d.task for d in world.deliveries if not d.says}
        carried.update(world.broker, world.unpublished, (int(task[1:]) for task in stored))
        require(self._owed(world) <= carried, "S8 nobody has a task that has not ended", world)

    def _owed(self, world: World) -> set[int]:
        """The tasks that have still to end; not what a death loses where nobody keeps it."""
        tasks, early = self.config.tasks, self.config.early_ack
        later = {t.retries_as for n, t in enumerate(tasks) if n not in world.over}
        left = set(range(len(tasks))) - world.over - later
        return {n for n in left if tasks[n].keep or not early}

    def is_over(self, world: World) -> bool:
        state = self.keys.states[world.key]
        busy = state.holders or state.grants or state.waiting or state.cooling or state.hold
        return not (
            busy or world.broker or world.deliveries or world.unpublished or self._owed(world)
        )


def _waits(state: KeyState, task: str) -> bool:
    """Whether the message of *task* is in the store, and is to run."""
    stored = {w.task for w in state.waiting if w.parked}
    stored |= {g.task for g in state.grants if g.parked and g.ending is None}
    return task in stored - {h.task for h in state.holders}


def _spent(world: World) -> World:
    return world._replace(left=world.left - 1)


def explore(config: Config) -> int:
    """Meet every world of *config*; how many there are.

    Raises :exc:`~tests.model.key.Violation` with the shortest way to the first broken rule.
    """
    explorer = Explorer(config)
    worlds = [explorer.start()]
    numbers, parents = {worlds[0]: 0}, [(-1, "start")]
    sources: dict[int, list[int]] = defaultdict(list)  # of what is no fault
    at = 0
    try:
        for at, world in enumerate(worlds):  # grows while it is walked
            explorer.check(world)
            for label, fault, then in explorer.steps(world):
                number = numbers.setdefault(then, len(worlds))
                if number == len(worlds):
                    worlds.append(then)
                    parents.append((at, label))
                if not fault:
                    sources[number].append(at)
        fine = [n for n, world in enumerate(worlds) if explorer.is_over(world)]
        reached = set(fine)
        for number in fine:  # grows while it is walked
            fine += [n for n in set(sources[number]) if n not in reached]
            reached.update(sources[number])
        at = next((n for n, _ in enumerate(worlds) if n not in reached), -1)
        require(at < 0, "L from here nothing can finish it all", worlds[at])
    except Violation as broken:
        while at >= 0:
            at, label = parents[at]
            broken.trace.insert(0, label)
        raise
    return len(worlds)
