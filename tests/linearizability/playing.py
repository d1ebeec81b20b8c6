"""A plan is played by several clients at once, and what each of them heard is noted."""

from __future__ import annotations

import itertools
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import StrEnum
from typing import Any
from unittest import mock

from celery_dlock.core.operations import (
    Cancel,
    DeadLetter,
    Enter,
    HandBack,
    Leave,
    Operation,
    Postpone,
    Reap,
    Renew,
    Replay,
)
from celery_dlock.core.state import Busy, Holder, Run, Same, Unknown
from celery_dlock.errors import BackendUnavailable
from celery_dlock.registry import open_backend
from celery_dlock.stores.base import BackendOptions, Guarantee, LockBackend, Trait
from tests.contract.twins import Clock
from tests.linearizability.checker import Call, TooManyStates, unexplained
from tests.linearizability.plan import CLIENTS, KEYS, Ask, Plan, Renewals, Sweep
from tests.linearizability.specification import UNHEARD, Asked, Heard, Known, Seen, Swept
from tests.linearizability.stores import Ground, Struck
from tests.services.campaign import Violation

#: By the store's own clock an unanswered wake comes again after five seconds, and nothing is to.
TOO_LONG = 4_000_000_000

#: So many clients share four threads: a store is used by several threads, and by several processes.
CONNECTIONS = 3

#: The share of phases in which something happens to the store, where something may.
TROUBLED = 0.6

#: What a client asks for on one key.
OPERATIONS = (Enter, Leave, Postpone, Reap, Cancel, Replay, DeadLetter, HandBack)

#: As :func:`celery_dlock.registry.open_backend`.
Opens = Callable[[str, BackendOptions], LockBackend]


class Check(StrEnum):
    """What can be wrong with a history."""

    UNEXPLAINED = "no order explains an answer"
    TOKEN_FELL = "a later grant has no larger token"
    ERROR = "an error that is none of a store's"


@dataclass(frozen=True, slots=True)
class Look:
    """Somebody looks at *key* while nobody is at work."""

    key: str


@dataclass(frozen=True, slots=True)
class Spoken:
    """*client* asked for *what* at *now*; *answer* is an error if it heard nothing."""

    client: int
    what: Ask | Look
    now: int | None
    called: int
    answered: int
    answer: Any

    def __str__(self) -> str:
        times = f"{self.called / 1e6:.3f}-{self.answered / 1e6:.3f}"
        return f"{times} {self.client}: {brief(self.what)} -> {brief(self.answer)}"

    @property
    def lost(self) -> bool:
        return isinstance(self.answer, Exception)


@dataclass
class History:
    """What was said, and between which instants something happened to the connections.

    *repeats* is whether the store's driver then asks again by itself. A store that is not *trusted*
    with tokens gives them in another order where grants overlap, and may tell others of one that
    was not the last word.
    """

    plan: Plan
    repeats: bool = False
    trusted: bool = True
    spoken: list[Spoken] = field(default_factory=list[Spoken])
    struck: Struck = field(default_factory=list[tuple[int, int]])
    again: set[Operation[Any]] = field(default_factory=set[Operation[Any]])

    @property
    def overlapping(self) -> int:
        """How many pairs were under way at the same time."""
        times = sorted((s.called, s.answered) for s in self.spoken)
        return sum(
            called < answered for n, (called, _) in enumerate(times) for _, answered in times[:n]
        )

    @property
    def _took_too_long(self) -> bool:
        times = [at for spoken in self.spoken for at in (spoken.called, spoken.answered)]
        return not self.plan.driven and max(times) - min(times) > TOO_LONG

    def violations(self) -> list[Violation] | None:
        """What no order explains, each with all that was said of its key.

        ``None`` if that cannot be said, because it took too long or too much was not answered.
        """
        if self._took_too_long:
            return None
        errors = [s for s in self.spoken if s.lost and not isinstance(s.answer, BackendUnavailable)]
        found = [Violation(Check.ERROR, self._told([each])) for each in errors]
        try:
            found += [told for key in sorted(set(KEYS)) if (told := self._unexplained(key))]
        except TooManyStates:
            return None
        return found if self.trusted else [*found, *self._fallen()]

    def _told(self, lines: Iterable[object]) -> str:
        return "\n".join([f"seed {self.plan.seed}", *map(str, lines)])

    def _fallen(self) -> Iterator[Violation]:
        """A grant that was asked for after another one was answered, and has no larger token."""
        first: dict[tuple[str, str], Spoken] = {}  # who asks again has the token of the first time
        for spoken in sorted(self.spoken, key=lambda s: s.called):
            if isinstance(spoken.what, Enter) and _token(spoken):
                first.setdefault((spoken.what.claim.key, spoken.what.claim.owner), spoken)
        for ((key, _), one), ((other, _), later) in itertools.permutations(first.items(), 2):
            if key == other and one.answered < later.called and _token(one) >= _token(later):
                yield Violation(Check.TOKEN_FELL, self._told([one, later]))

    def _unexplained(self, key: str) -> Violation | None:
        said = [(call, spoken) for spoken in self.spoken for call in self._calls(spoken, key)]
        place = unexplained([call for call, _ in said], Known())
        if place is None:
            return None
        lines = (f"{'>' if n == place else ' '} {spoken}" for n, (_, spoken) in enumerate(said))
        return Violation(Check.UNEXPLAINED, self._told(lines))

    def _calls(self, spoken: Spoken, key: str) -> Iterator[Call[Known]]:
        """What it was for *key*, and once more what may have been done twice."""
        twice = self._may_be_twice(spoken)
        if isinstance(spoken.what, Look) and spoken.what.key == key and not spoken.lost:
            state, dead = spoken.answer
            letters = frozenset((each.dead, each.message) for each in dead if each.key == key)
            yield Call(Seen(spoken.now, state, letters), spoken.called, spoken.answered)
        for operation, heard in _heard(spoken, key):
            if heard is None:
                yield Call(Asked(operation, spoken.now, None), spoken.called, None)
            elif isinstance(spoken.what, Sweep):
                yield Call(Swept(key, spoken.now, heard.wakes), spoken.called, spoken.answered)
            else:
                counts = heard if self.trusted else _without_token(heard)
                asked = Asked(operation, spoken.now, counts, operation in self.again)
                yield Call(asked, spoken.called, spoken.answered)
            if twice:
                yield Call(Asked(operation, spoken.now, None), spoken.called, None)

    def _may_be_twice(self, spoken: Spoken) -> bool:
        """Whether it was asked again; leases and a sweep may have been where something happened."""
        if not isinstance(spoken.what, Renewals | Sweep):
            return spoken.what in self.again
        during = (f <= spoken.answered and spoken.called <= last for f, last in self.struck)
        return self.repeats and any(during)


def _heard(spoken: Spoken, key: str) -> Iterator[tuple[Operation[Any], Heard | None]]:
    """The operations on *key*, each with its answer."""
    lost = spoken.lost
    match spoken.what:
        case Look():
            return
        case Sweep():
            woken = () if lost else tuple(w for w in spoken.answer.wakes if w.key == key)
            yield Reap(key), None if lost else Heard(None, woken)
        case Renewals(claims):
            verdicts = [Unknown()] * len(claims) if lost else spoken.answer
            for claim, verdict in zip(claims, verdicts, strict=True):
                if claim.key == key:
                    yield Renew(claim), None if verdict == Unknown() else Heard(verdict)
        case operation if operation.claim.key == key:
            reply = spoken.answer
            yield operation, None if lost else Heard(reply.verdict, reply.wakes)


def _token(spoken: Spoken) -> int:
    """The one that was given, if one was."""
    verdict = None if spoken.lost else spoken.answer.verdict
    return verdict.token if isinstance(verdict, Run) else 0


def _without_token(heard: Heard) -> Heard:
    match heard.verdict:
        case Run(slot, token) if token > 0:
            return replace(heard, verdict=Run(slot, UNHEARD))
        case Busy(Holder() as holder) | Same(holder):
            verdict = replace(heard.verdict, holder=replace(holder, token=UNHEARD))
            return replace(heard, verdict=verdict)
    return heard


def play(plan: Plan, ground: Ground, opened: Opens = open_backend) -> History:
    """Play *plan*; its clients have three connections, or one store where it is not shared."""
    clock = Clock() if plan.driven else None
    options = BackendOptions(prefix=f"history-{uuid.uuid4().hex}", clock=clock)
    with ExitStack() as stack:
        clients = [opened(ground.url, options)]
        if Trait.MULTI_PROCESS in clients[0].traits:
            clients += [opened(ground.url, options) for _ in range(CONNECTIONS - 1)]
        for client in clients:
            stack.callback(client.close)
        return _played(plan, ground, clients, clock)


def _played(
    plan: Plan, ground: Ground, clients: Sequence[LockBackend], clock: Clock | None
) -> History:
    history = History(plan, ground.repeats, clients[0].guarantee is not Guarantee.BEST_EFFORT)
    chance = random.Random(plan.seed)
    with often_interrupted(), _noted(history.again), ThreadPoolExecutor(CLIENTS) as threads:
        for phase in plan.phases:
            if clock is not None:
                clock.now += phase.step
            now = None if clock is None else clock.now
            start = threading.Barrier(len(phase.asks))

            def speak(number: int, asks: Sequence[Ask], now: Any = now, start: Any = start) -> Any:
                start.wait()
                return list(_said(number, clients[number % len(clients)], asks, now))

            said = [threads.submit(speak, *each) for each in enumerate(phase.asks)]
            if plan.driven and ground.troubles and chance.random() < TROUBLED:
                history.struck += chance.choice(ground.troubles)(chance)
            history.spoken += [spoken for each in said for spoken in each.result()]
            for key in sorted(set(KEYS)):
                # A look sees all that its own connection has been answered: on a ZooKeeper's
                # follower, what others have been answered may still be on its way.
                ahead = Cancel(key, "nobody")
                history.spoken += [_spoken(-1, clients[0], w, now) for w in (ahead, Look(key))]
    return history


def _said(
    number: int, client: LockBackend, asks: Sequence[Ask], now: int | None
) -> Iterator[Spoken]:
    """Who hears nothing says nothing more in this phase: all that it might have done is open."""
    for ask in asks:
        spoken = _spoken(number, client, ask, now)
        yield spoken
        if spoken.lost:
            return


def _spoken(number: int, client: LockBackend, what: Ask | Look, now: int | None) -> Spoken:
    called = time.monotonic_ns()
    try:
        answer = answer_of(client, what)
    except Exception as exc:  # what is none of a store's to raise is a violation
        answer = exc
    return Spoken(number, what, now, called, time.monotonic_ns(), answer)


def answer_of(client: LockBackend, what: Ask | Look) -> Any:
    """What *client* says to that."""
    match what:
        case Look(key):
            return client.peek(key), client.dead()
        case Sweep():
            return client.sweep()
        case Renewals(claims):
            return client.renew(claims)
        case _:
            return client.apply(what)


def brief(value: object) -> str:
    """*value* without the fields that say nothing."""
    if isinstance(value, tuple | list):
        return f"({', '.join(map(brief, value))})"
    if isinstance(value, StrEnum):
        return value.value
    if not is_dataclass(value):
        return repr(value)
    told = ((each.name, getattr(value, each.name), each.default) for each in fields(value))
    said = (f"{name}={brief(field)}" for name, field, usual in told if field != usual)
    return f"{type(value).__name__}({', '.join(said)})"


@contextmanager
def _noted(again: set[Operation[Any]]) -> Iterator[None]:
    """Which operations a driver asks for again."""

    def noting(says: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def noted(operation: Any) -> Any:
            again.add(operation)
            return says(operation)

        return noted

    with ExitStack() as stack:
        for kind in OPERATIONS:
            stack.enter_context(mock.patch.object(kind, "again", noting(kind.again)))
        yield


@contextmanager
def often_interrupted() -> Iterator[None]:
    """Threads take turns a hundred times as often, so that they meet where a step is short."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(before / 1000)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
