"""Plays many canvases at the same time, each to its end or to where it hangs."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from celery.result import AsyncResult, GroupResult

from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim, KeyState
from celery_dlock.runtime import Runtime, runtime
from tests.services.canvases import CANVASES
from tests.services.lab import Lab
from tests.services.members import key_of, shown


class Met(StrEnum):
    """How a member meets its key."""

    FREE = "free"
    TAKEN = "taken and then freed"
    HELD = "held until it has ended"
    FULL = "held, another message waits already"
    OUTRUN = "held, another message comes after it"


@dataclass(frozen=True, slots=True)
class Case:
    """One canvas; the policy of its member, how that meets its key, and what its body does."""

    canvas: str
    policy: str
    met: Met
    body: str

    def __str__(self) -> str:
        return f"{self.canvas}: {self.policy}, {self.met}, {self.body}"


#: What a case waits for, and whether it is so by now.
Waits = tuple[str, Callable[[], bool]]


class Play:
    """One case on its way. ``result`` is Celery's; ``hangs`` says at what it waited in vain."""

    def __init__(self, lab: Lab, case: Case, timeout: float) -> None:
        self.case = case
        self.id = uuid.uuid4().hex
        self.result: AsyncResult | GroupResult
        self.hangs: str | None = None
        self._lab = lab
        self._runtime = runtime(lab.app)
        self._deadline = time.monotonic() + timeout
        self._steps = self._play()
        self._what, self._is_so = next(self._steps)

    def over(self) -> bool:
        """Go on as far as it goes; whether that is all."""
        while self._is_so():
            step = next(self._steps, None)
            if step is None:
                return True
            self._what, self._is_so = step
        if time.monotonic() > self._deadline:
            self.hangs = self._what
            self._steps.close()
            return True
        return False

    def key(self) -> KeyState:
        """The state of the key that the members of this case lock on."""
        return self._runtime.backend.peek(key_of(self.id))

    def _play(self) -> Generator[Waits]:
        met = self.case.met
        with held(self._runtime, key_of(self.id), met is not Met.FREE):
            if met is Met.FULL:
                self._member("earlier").apply_async()
                yield "another message waits", lambda: self.key().parked == 1
            work = CANVASES[self.case.canvas].make(self._member("member"), self._step)
            work.link_error(self._step("failed", immutable=True))
            self.result = work.apply_async()
            if met in (Met.TAKEN, Met.OUTRUN):
                yield "the member is refused", lambda: bool(self.key().waiting)
            if met is Met.OUTRUN:
                self._member("later").apply_async()
            if met not in (Met.FREE, Met.TAKEN):
                yield "it ends while the key is held", lambda: bool(self.result.ready())
        yield "it ends", lambda: bool(self.result.ready())
        yield "the key is free", lambda: self.key() == KeyState()

    def _member(self, label: str) -> Any:
        member = self._lab.app.tasks[f"member: {self.case.policy}"]
        return member.s(case=self.id, label=label, body=self.case.body)

    def _step(self, label: str, *, immutable: bool = False) -> Any:
        step = self._lab.app.tasks["step"]
        return step.signature(kwargs={"case": self.id, "label": label}, immutable=immutable)


def play(lab: Lab, cases: Sequence[Case], timeout: float, at_once: int) -> Mapping[Case, Play]:
    """Play *cases*, each for *timeout* seconds at most, so many of them at the same time."""
    waiting = list(reversed(cases))
    playing: list[Play] = []
    played: dict[Case, Play] = {}
    pause = threading.Event()
    while waiting or playing:
        while waiting and len(playing) < at_once:
            playing.append(Play(lab, waiting.pop(), timeout))
        over = [play for play in playing if play.over()]
        played |= {play.case: play for play in over}
        playing = [play for play in playing if play.case not in played]
        pause.wait(0.04)  # each look asks the store and the results of every play
    return played


@contextmanager
def held(here: Runtime, key: str, really: bool) -> Iterator[None]:
    """Somebody else has *key*: not ``lock()``, which belongs to the thread that all plays share."""
    claim = Claim(key, f"{uuid.uuid4()}:0:0", uuid.uuid4().hex, ttl=int(120 * SECOND))
    if really:
        here.backend.enter(claim)
    try:
        yield
    finally:
        here.manager.take_back([claim])


def value_of(result: AsyncResult | GroupResult) -> str:
    """What *result* is, in a line: its value, or the name of its error, or that it is not there."""
    if isinstance(result, GroupResult):
        return "[" + ", ".join(map(value_of, result.results)) + "]"
    if not result.ready():
        return f"({result.state})"
    value = result.result
    return type(value).__name__ if result.failed() else shown("", [value])[1:-1]


def everything_in(result: Any) -> Iterator[AsyncResult]:
    """All results that hang on *result*: of the members of a group, and of what came before it."""
    while result is not None:
        if isinstance(result, GroupResult):
            for member in result.results:
                yield from everything_in(member)
        else:
            yield result
        result = result.parent
