"""A small world around several keys, which the shipped lock manager takes and gives back.

What a delivery does next depends on nothing but what it has heard, so it is begun anew for each
step: the manager hears again what it has heard, and is stopped where it asks for more. Each of its
requests is a step, and what others do falls between any two. Who is called is published at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar, cast
from unittest import mock

from celery_dlock.core.operations import Enter, Leave, Reap
from celery_dlock.core.state import Busy, Claim, KeyState, Mode, Outcome, Same, WaitMode
from celery_dlock.errors import BackendUnavailable
from celery_dlock.locks.manager import Keeping, LockManager
from celery_dlock.locks.refused import Refused
from celery_dlock.stores.base import LockBackend, Reply
from tests.model.key import AHEAD, NOW, Keys, Violation, is_due, require

T = TypeVar("T")

#: What may go wrong once: a worker dies, or the store's answer is lost.
CRASH, REPLY = "crash", "reply"
#: What a delivery does without the store: it runs its body, or ends.
BODY, DONE, GONE, AGAIN = "body", "done", "gone", "again"
#: What it hears where the store's answer is lost.
NOTHING = object()


@dataclass(frozen=True, slots=True)
class Wants:
    """One key that a task takes. A ``parent`` is taken for the sake of the others."""

    key: str
    mode: Mode = Mode.EXCLUSIVE
    limit: int = 0
    parent: bool = False

    @property
    def how(self) -> Mode:
        return Mode.LIMITED if self.limit else self.mode


@dataclass(frozen=True, slots=True)
class Crowd:
    """Some *tasks* that take some keys each, in the order that is written.

    A key that is kept for a task that waits for another one is free again after an hour, which
    nobody has to wait for, unless the tasks may last ``for_hours``.
    """

    name: str
    tasks: tuple[tuple[Wants, ...], ...]
    faults: int = 0
    kinds: frozenset[str] = frozenset({CRASH, REPLY})
    wait: WaitMode = WaitMode.QUEUE
    workers: int = 2
    for_hours: bool = False


class Worker(NamedTuple):
    """One worker: its message is that of ``task``, by the call at the key ``woken``."""

    task: int = -1
    woken: str = ""
    nonce: int = 0
    heard: tuple[int, ...] = ()


class World(NamedTuple):
    """Everything there is: keys by number, and messages by task and by the key of their call."""

    keys: tuple[int, ...]
    broker: tuple[tuple[int, str], ...]
    workers: tuple[Worker, ...]
    told: frozenset[int]
    left: int


#: A label, whether it takes no fault and no hour, and the world after it.
Next = tuple[str, bool, World]


class _Stopped(BaseException):
    """The manager asks for what it has not heard yet."""


@dataclass(slots=True)
class _Heard:
    """A store that repeats what was said, and notes what it is *asked* beyond that."""

    answers: list[object] = field(default_factory=list)
    asked: tuple[Any, ...] = ()
    guarantee = certain = traits = renew = row_of = None

    def _hear(self, *asked: object) -> Any:
        self.asked = self.asked or asked
        if self.asked is not asked or not self.answers:
            raise _Stopped
        self.asked = ()
        answer = self.answers.pop(0)
        if answer is NOTHING:
            raise BackendUnavailable("no answer")
        return answer

    def lease_of(self, ttl: int) -> int:
        return ttl

    def enter(self, claim: Claim, message: bytes | None = None) -> Reply[Any]:
        return Reply(self._hear("enter", claim.key, claim))

    def leave(self, claim: Claim, outcome: Outcome, message: bytes | None = None) -> Reply[Any]:
        return Reply(self._hear("leave", claim.key, claim, outcome))

    def look(self, keys: Sequence[str]) -> list[KeyState]:
        return [self._hear("look", key) for key in keys]

    def message(self, key: str, task: str) -> bytes | None:
        return cast("bytes | None", self._hear("message", key, task))

    def parked(self, task_ids: Collection[str]) -> list[tuple[str, str]]:
        return cast("list[tuple[str, str]]", self._hear("parked", "", *sorted(task_ids)))

    def body(self) -> None:
        self._hear(BODY, "")


@dataclass(slots=True)
class Model:
    """A crowd, and what has been worked out about it."""

    crowd: Crowd
    keys: Keys = field(default_factory=Keys)
    names: list[str] = field(init=False)
    _said: dict[object, int] = field(default_factory=dict)
    _next: dict[Worker, tuple[Any, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = sorted({wants.key for task in self.crowd.tasks for wants in task})

    def start(self) -> World:
        empty = self.keys.number(KeyState())
        broker = tuple((task, "") for task in range(len(self.crowd.tasks)))
        workers = (Worker(),) * self.crowd.workers
        return World((empty,) * len(self.names), broker, workers, frozenset(), self.crowd.faults)

    def asks(self, me: Worker) -> tuple[Any, ...]:
        """What *me* does next, by what it has heard."""
        found = self._next.get(me)
        if found is None:
            said = list(self._said)
            store = _Heard([said[n] for n in me.heard])
            try:
                found = (self._deliver(store, me), "")
            except _Stopped:
                found = store.asked
            self._next[me] = found
        return found

    def _deliver(self, store: _Heard, me: Worker) -> str:
        manager = LockManager(cast("LockBackend", store), lambda _: None, monotonic=lambda: 0.0)
        manager._keeper = mock.Mock()  # what lives is renewed
        wants, keeping = self.crowd.tasks[me.task], Keeping(None, lambda *_: None)
        claim = Claim("", f"t{me.task}", str(me.nonce), AHEAD, wait=self.crowd.wait)
        claim = replace(claim, patience=AHEAD, done_ttl=AHEAD)
        claims = [replace(claim, key=w.key, mode=w.how, limit=w.limit or 1) for w in wants]
        parents = [w.key for w in wants if w.parent]
        try:
            answer = manager.acquire(claims, keeping, b"", me.woken or None, parents)
        except BackendUnavailable:
            return AGAIN
        if isinstance(answer, Refused):
            return AGAIN if isinstance(answer.verdict, Busy | Same) else GONE
        store.body()
        manager.release(answer, Outcome.DONE, b"")
        return DONE

    def steps(self, world: World) -> Iterator[Next]:
        """Every step from *world*."""
        for at, me in enumerate(world.workers):
            if me.task >= 0:
                yield from self._worker(world, at, me)
            elif at == 0 or me != world.workers[at - 1]:
                yield from self._take_message(world, at)
        for at, key in enumerate(world.keys):
            yield from self._time(world, at, self.keys.states[key])

    def _take_message(self, world: World, at: int) -> Iterator[Next]:
        for task, woken in sorted(set(world.broker)):
            used = {w.nonce for w in world.workers if w.task == task}
            for state in map(self.keys.states.__getitem__, world.keys):
                used |= {int(h.nonce) for h in state.holders if h.task == f"t{task}"}
                used |= {int(g.taker) for g in state.grants if g.taker and g.task == f"t{task}"}
            nonce = next(n for n in range(1, len(used) + 2) if n not in used)
            broker = list(world.broker)
            broker.remove((task, woken))
            taken = world._replace(broker=tuple(broker))
            yield f"deliver t{task}", True, _seat(taken, at, Worker(task, woken, nonce))

    def _worker(self, world: World, at: int, me: Worker) -> Iterator[Next]:
        what, name, *of = self.asks(me)
        if world.left and CRASH in self.crowd.kinds:
            died = _published(world._replace(left=world.left - 1), (me.task, me.woken))
            yield f"CRASH of t{me.task}", False, _seat(died, at, Worker())
        if what == "parked":
            states = zip(self.names, (self.keys.states[key] for key in world.keys), strict=True)
            answer: object = tuple((n, t) for n, s in states for t in sorted(_parked(s)) if t in of)
            yield (
                f"t{me.task} looks where {of} wait",
                True,
                _seat(world, at, self._hears(me, answer)),
            )
            return
        if not name:
            yield from self._without_the_store(world, at, me, what)
            return
        key = world.keys[self.names.index(name)]
        label = f"t{me.task} at {name}: {what}"
        if what in ("look", "message"):
            state = self.keys.states[key]
            kept = f"t{me.task}" in _parked(state)
            answer = state if what == "look" else b"" if kept else None
            yield label, True, _seat(world, at, self._hears(me, answer))
            return
        claim = of[0]
        if what == "enter":
            op = self.keys.apply(key, Enter(claim))
        else:
            op = self.keys.apply(key, Leave(claim, of[1]))
        after = _published(self._put(world, name, op.key), *((task, name) for task in op.wakes))
        label = f"{label}, {type(op.verdict).__name__}"
        yield label, True, _seat(after, at, self._hears(me, op.verdict))
        if what == "enter" and world.left and REPLY in self.crowd.kinds:
            lost = self._hears(me, NOTHING)
            for told, then in ((f"{label}, and nobody hears it", after), ("not heard", world)):
                yield told, False, _seat(then._replace(left=world.left - 1), at, lost)

    def _without_the_store(self, world: World, at: int, me: Worker, what: str) -> Iterator[Next]:
        states = map(self.keys.states.__getitem__, world.keys)
        mine = (f"t{me.task}", str(me.nonce))
        held = [
            any(h.expires > NOW and (h.task, h.nonce) == mine for h in state.holders)
            for state in states
        ]
        if what == BODY:
            keys = {wants.key for wants in self.crowd.tasks[me.task]}
            require(held == [n in keys for n in self.names], "S1 who runs has all its keys", world)
            told = world._replace(told=world.told | {me.task})
            yield f"body of t{me.task}", True, _seat(told, at, self._hears(me, None))
            return
        require(not any(held), "R who has ended has none of its keys", world)
        after = _published(world, (me.task, "")) if what == AGAIN else world
        yield f"t{me.task} is {what}", True, _seat(after, at, Worker())

    def _hears(self, me: Worker, answer: object) -> Worker:
        number = self._said.setdefault(answer, len(self._said))
        return me._replace(heard=(*me.heard, number))

    def _time(self, world: World, at: int, state: KeyState) -> Iterator[Next]:
        name = self.names[at]
        live = {(f"t{w.task}", str(w.nonce)) for w in world.workers}
        busy = {f"t{w.task}" for w in world.workers} | {f"t{task}" for task, _ in world.broker}
        for holder in state.holders:
            if holder.expires > NOW and (holder.task, holder.nonce) not in live:
                ended = replace(holder, expires=NOW)
                after = replace(state, holders=_instead(state.holders, holder, ended))
                yield f"lease of {holder.task} at {name} ends", True, self._is(world, name, after)
        for turn in state.grants:
            if turn.due > NOW and turn.task not in busy:
                over = _instead(state.grants, turn, replace(turn, due=NOW))
                free, after = turn.parked or self.crowd.for_hours, replace(state, grants=over)
                label = f"turn of {turn.task} at {name} is overdue"
                yield label, free, self._is(world, name, after)
        for place in state.waiting:
            if place.expires and place.task not in busy:
                left = _instead(state.waiting, place, replace(place, expires=NOW))
                after = replace(state, waiting=left)
                yield f"place of {place.task} at {name} expires", True, self._is(world, name, after)
        if is_due(state):
            op = self.keys.apply(world.keys[at], Reap(name))
            calls = ((task, name) for task in op.wakes)
            yield f"reap {name}", True, _published(self._put(world, name, op.key), *calls)

    def _is(self, world: World, name: str, state: KeyState) -> World:
        return self._put(world, name, self.keys.number(state))

    def _put(self, world: World, name: str, key: int) -> World:
        at = self.names.index(name)
        return world._replace(keys=(*world.keys[:at], key, *world.keys[at + 1 :]))

    def over(self, world: World) -> bool:
        """Whether all is done, and nothing is left anywhere."""
        left = world.broker or any(w.task >= 0 for w in world.workers)
        states = [self.keys.states[key] for key in world.keys]
        free = not any(state.holders or state.grants or state.waiting for state in states)
        return not left and free and len(world.told) == len(self.crowd.tasks)


def _instead(things: tuple[T, ...], old: T, new: T) -> tuple[T, ...]:
    return tuple(new if thing is old else thing for thing in things)


def _published(world: World, *messages: tuple[int, str]) -> World:
    return world._replace(broker=tuple(sorted((*world.broker, *messages))))


def _seat(world: World, at: int, worker: Worker) -> World:
    return world._replace(
        workers=tuple(sorted((*world.workers[:at], worker, *world.workers[at + 1 :])))
    )


def explore_several(crowd: Crowd) -> int:
    """Meet every world of *crowd*, and say how many there are.

    Raises :exc:`~tests.model.key.Violation` with the shortest way to the first broken rule.
    """
    model = Model(crowd)
    start = model.start()
    came: dict[World, tuple[str, World]] = {start: ("start", start)}
    before: dict[World, list[World]] = {}
    todo = [start]
    for world in todo:  # grows while it is walked
        try:
            steps = [*model.steps(world)]
        except Violation as broken:
            broken.trace = _trace(came, world)
            raise
        for label, free, after in steps:
            if free:
                before.setdefault(after, []).append(world)
            if after not in came:
                came[after] = label, world
                todo.append(after)
    fine = _from_which_all_ends([world for world in todo if model.over(world)], before)
    for world in todo:
        if world not in fine:
            stuck = Violation("L from here nothing can finish it all", world)
            stuck.trace = _trace(came, world)
            raise stuck
    return len(todo)


def _from_which_all_ends(over: list[World], before: dict[World, list[World]]) -> set[World]:
    fine = {*over}
    for world in over:  # grows while it is walked
        for source in before.get(world, ()):
            if source not in fine:
                fine.add(source)
                over.append(source)
    return fine


def _trace(came: dict[World, tuple[str, World]], world: World) -> list[str]:
    label, before = came[world]
    return [label] if world == before else [*_trace(came, before), label]


def _parked(state: KeyState) -> set[str]:
    """The tasks of which the store has a message there."""
    waiting = {entry.task for entry in state.waiting if entry.parked}
    return waiting | {turn.task for turn in state.grants if turn.parked}
