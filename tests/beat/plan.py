"""What will go wrong with one crew of beats, drawn from a seed before anything starts."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What can go wrong. A beat that is killed or shut down is started again after a while."""

    KILL = "kill a beat"
    STOP = "shut a beat down"
    PAUSE = "pause a beat"
    CUT = "cut a beat off from the store"
    AWAY = "cut all off from the store"
    PUT_ON = "put the clock on"
    PUT_BACK = "put the clock back"


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault: when it begins and how long it lasts, in seconds, and how far a clock is put.

    *target* is the number of a beat, of three; ``None`` is whoever leads.
    """

    at: float
    kind: Kind
    length: float
    target: int | None
    by: float = 0.0

    def __str__(self) -> str:
        whom = "leader" if self.target is None else f"beat{self.target}"
        return f"{self.at:4.1f} s  {self.kind} ({whom}), {self.length:.1f} s, {self.by:+.0f} s"


#: On average, in seconds.
BETWEEN = 0.8


def draw(seed: int, seconds: float, ttl: float) -> list[Strike]:
    """The same arguments always draw the same strikes."""
    chance = random.Random(seed)
    strikes: list[Strike] = []
    at = chance.uniform(0, BETWEEN)
    while at < seconds:
        kind = chance.choice(list(Kind))
        target = chance.choice((None, None, 0, 1, 2))
        strikes.append(Strike(at, kind, _length(chance, kind, ttl), target, _by(chance, kind)))
        at += chance.expovariate(1 / BETWEEN)
    return strikes


def _length(chance: random.Random, kind: Kind, ttl: float) -> float:
    match kind:
        case Kind.KILL | Kind.STOP:
            return chance.uniform(0.0, 2.0)
        case Kind.PUT_ON | Kind.PUT_BACK:
            return 0.0
        case _:
            return ttl * chance.uniform(0.2, 2.0)


def _by(chance: random.Random, kind: Kind) -> float:
    """In seconds of the beats' clock."""
    match kind:
        case Kind.PUT_ON:
            return chance.uniform(5.0, 300.0)
        case Kind.PUT_BACK:
            return -chance.uniform(5.0, 90.0)
        case _:
            return 0.0
