"""What will be sent and what will go wrong, drawn from a seed before anything starts.

Faults come in spells with a quiet stretch between them: what a fault may excuse, order above all,
is held to the letter in the quiet ones.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What can go wrong."""

    KILL_CHILD = "kill a child"
    KILL_MAIN = "kill a worker's main process"
    KILL_WORKER = "kill a worker with all its processes"
    STOP_WORKER = "shut a worker down"
    STOP_COLD = "shut a worker down without waiting for its bodies"
    PAUSE_WORKER = "pause a worker"
    CUT_STORE = "cut the store's connections"
    LOSE_REPLIES = "lose the store's replies"
    STORE_AWAY = "take the store away"
    KILL_MEMBER = "kill a member of the store"
    PAUSE_MEMBER = "pause a member of the store"
    RESTART_BROKER = "restart the broker"
    COPY = "send a message again"


@dataclass(frozen=True, slots=True)
class Key:
    """A hot key and how its tasks wait. ``ordered``: whether they are promised their turns."""

    name: str
    task: str
    limit: int = 1
    ordered: bool = False
    weight: int = 1


KEYS = (
    Key("first", "queued", ordered=True, weight=4),
    Key("second", "queued", ordered=True, weight=3),
    Key("third", "queued", ordered=True, weight=2),
    Key("slots", "slotted", limit=2, weight=2),
    Key("again", "rescheduled", weight=1),
)


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault: when it begins and how long it lasts, in seconds; whom it hits is *target*."""

    at: float
    kind: Kind
    length: float
    target: int

    def __str__(self) -> str:
        return f"{self.at:5.1f} s  {self.kind} ({self.target}) for {self.length:.1f} s"


@dataclass(frozen=True, slots=True)
class Sending:
    """One task: when it is sent, for which key, the pauses in its body, how often it retries."""

    at: float
    key: Key
    steps: tuple[float, ...]
    retries: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """All of one round, in the order of time."""

    seed: int
    strikes: tuple[Strike, ...]
    sendings: tuple[Sending, ...]


CYCLE = 12.0
QUIET = 5.0
BURST = 12
#: On average, in seconds.
BETWEEN_STRIKES = 0.5
BETWEEN_BURSTS = 0.4


def draw(
    seed: int, seconds: float, kinds: tuple[Kind, ...], ttl: float, pace: float = 1.0
) -> Schedule:
    """The same arguments always draw the same schedule; a higher *pace* sends more tasks."""
    chance = random.Random(seed)
    sendings = tuple(_sendings(chance, seconds, pace))
    return Schedule(seed, tuple(_strikes(chance, seconds, kinds, ttl)), sendings)


def _sendings(chance: random.Random, seconds: float, pace: float) -> list[Sending]:
    weights = [key.weight for key in KEYS]
    sendings: list[Sending] = []
    at = 0.0
    while at < seconds:
        (key,) = chance.choices(KEYS, weights)
        for _ in range(chance.randint(1, BURST)):
            steps = tuple(chance.uniform(0.01, 0.12) for _ in range(chance.randint(1, 4)))
            retries = chance.choice((0,) * 9 + (1,))
            sendings.append(Sending(at, key, steps, retries))
            at += chance.uniform(0, 0.03)
        at += chance.expovariate(pace / BETWEEN_BURSTS)
    return sendings


def _strikes(
    chance: random.Random, seconds: float, kinds: tuple[Kind, ...], ttl: float
) -> list[Strike]:
    strikes: list[Strike] = []
    at = 1.0
    while kinds and at < seconds:
        if at % CYCLE < CYCLE - QUIET:
            kind = chance.choice(kinds)
            strikes.append(Strike(at, kind, _length(chance, kind, ttl), chance.randrange(1000)))
        at += chance.expovariate(1 / BETWEEN_STRIKES)
    return strikes


def _length(chance: random.Random, kind: Kind, ttl: float) -> float:
    match kind:
        case Kind.PAUSE_WORKER:
            return ttl * chance.uniform(1.2, 4.0)
        case Kind.STORE_AWAY | Kind.KILL_MEMBER:
            return ttl * chance.uniform(0.2, 1.8)
        case Kind.PAUSE_MEMBER:
            return ttl * chance.uniform(0.5, 2.5)
        case Kind.RESTART_BROKER:
            return chance.uniform(0.0, 1.0)
        case _:
            return 0.0
