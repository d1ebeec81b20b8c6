"""A crew of beats, and the faults that strike it; each lasts as long as its block."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field

from tests.beat.crew import PATIENCE, Crew
from tests.beat.plan import Kind, Strike
from tests.beat.ways import ServerWays
from tests.services.beat import Beat

#: What is not struck while it lasts.
_GONE = {Kind.KILL, Kind.STOP, Kind.PAUSE}
_CUT = {Kind.CUT, Kind.AWAY}


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault that has begun, at the monotonic instant *at*.

    Whether it struck the leader, and whether another one was not over yet.
    """

    kind: Kind
    at: float
    led: bool
    beside: bool


@dataclass(frozen=True, slots=True, eq=False)
class UnderWay:
    """A fault that is to be over at *until*."""

    kind: Kind
    beat: Beat
    until: float
    fault: ExitStack


@dataclass
class Group:
    """A crew, its ways to the store, and what is done to it."""

    seed: int
    crew: Crew
    ways: ServerWays
    strikes: list[Strike]
    struck: list[Struck] = field(default_factory=list)
    under_way: list[UnderWay] = field(default_factory=list)

    def act(self, now: float) -> None:
        """Begin and end what is to begin and end by *now*, in seconds from the start."""
        for each in [each for each in self.under_way if each.until <= now]:
            each.fault.close()
            self.under_way.remove(each)
        while self.strikes and self.strikes[0].at <= now:
            self._begin(self.strikes.pop(0), now)

    @property
    def over(self) -> bool:
        return not self.strikes and not self.under_way

    def _begin(self, what: Strike, now: float) -> None:
        leader = self.crew.leader()
        beat = leader if what.target is None else self.crew.beats[what.target]
        if beat is None or self._spares(what.kind, beat):
            return
        beside = bool(self.under_way)
        self.struck.append(Struck(what.kind, time.monotonic(), beat is leader, beside))
        fault = ExitStack()
        fault.enter_context(self._fault(what, beat))
        self.under_way.append(UnderWay(what.kind, beat, now + what.length, fault))

    def _spares(self, kind: Kind, beat: Beat) -> bool:
        """Whether something is done to it already that does not go together with *kind*."""
        if kind in _CUT:
            return any(each.kind in _CUT for each in self.under_way)
        return kind in _GONE and any(
            each.kind in _GONE and each.beat is beat for each in self.under_way
        )

    def _fault(self, what: Strike, beat: Beat) -> AbstractContextManager[object]:
        match what.kind:
            case Kind.KILL:
                return _gone(beat, signal.SIGKILL)
            case Kind.STOP:
                return _gone(beat, signal.SIGTERM)
            case Kind.PAUSE:
                return self._paused(beat)
            case Kind.CUT:
                return self.ways.cut(self.crew.beats.index(beat))
            case Kind.AWAY:
                return self._away()
            case Kind.PUT_ON | Kind.PUT_BACK:
                self.crew.put_on(what.by)
                return nullcontext()

    @contextmanager
    def _paused(self, beat: Beat) -> Iterator[None]:
        began = self.crew.pause(beat)
        try:
            yield
        finally:
            self.crew.resume(beat, began)

    @contextmanager
    def _away(self) -> Iterator[None]:
        with ExitStack() as stack:
            for number in range(len(self.crew.beats)):
                stack.enter_context(self.ways.cut(number))
            yield


@contextmanager
def _gone(beat: Beat, number: signal.Signals) -> Iterator[None]:
    """Started again afterwards, when it is gone."""
    assert beat.process is not None
    beat.send(number)
    try:
        yield
    finally:
        beat.process.wait(PATIENCE)
        beat.start(ready=False)
