"""What will be sent and what will go wrong, drawn from a seed before anything starts.

A round has few of all features, drawn from its seed: what needs two of them and none of the others
is met by some round, while in a round of all of them each would hide the others (Groce and others,
"Swarm testing", 2012).

Faults come in spells with a quiet stretch between them: what a fault may excuse, order above all,
is held to the letter in the quiet ones.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tests.chaos.ways import FEATURES, KEYS, Key


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
    PAUSE_STORE = "pause the store"
    KILL_MEMBER = "kill a member of the store"
    PAUSE_MEMBER = "pause a member of the store"
    RESTART_BROKER = "restart the broker"
    COPY = "send a message again"


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
    """One task: when it is sent, for which key, the pauses in its body, how often it retries.

    ``revoked`` is after how many seconds that is done, if it is.
    """

    at: float
    key: Key
    steps: tuple[float, ...]
    retries: int
    revoked: float | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """All of one round, in the order of time."""

    seed: int
    strikes: tuple[Strike, ...]
    sendings: tuple[Sending, ...]

    @property
    def locks(self) -> frozenset[str]:
        """The names of all that its tasks lock."""
        return frozenset(name for sending in self.sendings for name in sending.key.taken)


CYCLE = 12.0
QUIET = 5.0
BURST = 12
#: On average, in seconds; between the bursts of a key of weight 1.
BETWEEN_STRIKES = 0.5
BETWEEN_BURSTS = 4.8
#: So many features are in a round.
FEWEST, MOST = 2, 7


def mixture(seed: int) -> list[str]:
    """The features of the round of *seed*."""
    chance = random.Random(f"features of {seed}")
    return chance.sample(list(FEATURES), chance.randint(FEWEST, MOST))


def keys_of(features: Collection[str]) -> tuple[Key, ...]:
    return tuple(key for name in features for key in FEATURES[name])


def draw(
    seed: int,
    seconds: float,
    kinds: tuple[Kind, ...],
    ttl: float,
    pace: float = 1.0,
    keys: Sequence[Key] = KEYS,
) -> Schedule:
    """The same arguments always draw the same schedule; a higher *pace* sends more tasks.

    What is sent for a key does not depend on the others, nor do the faults.
    """
    sendings = [each for key in keys for each in _sendings(seed, key, seconds, pace)]
    sendings.sort(key=lambda each: each.at)
    strikes = _strikes(random.Random(seed), seconds, kinds, ttl)
    return Schedule(seed, tuple(strikes), tuple(sendings))


def _sendings(seed: int, key: Key, seconds: float, pace: float) -> Iterator[Sending]:
    chance = random.Random(f"{seed} for {key.task} on {key.name}")
    often = pace * key.weight / BETWEEN_BURSTS
    at = chance.expovariate(often)
    while at < seconds:
        for _ in range(chance.randint(1, BURST)):
            steps = tuple(chance.uniform(0.01, 0.12) for _ in range(chance.randint(1, 4)))
            retries = chance.choice((0,) * 9 + (1,))
            revoked = chance.choice((None, chance.uniform(0, 1))) if key.revoked else None
            yield Sending(at, key, steps, retries, revoked)
            at += chance.uniform(0, 0.03)
        at += chance.expovariate(often)


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
        case Kind.PAUSE_STORE | Kind.PAUSE_MEMBER:
            return ttl * chance.uniform(0.5, 2.5)
        case Kind.RESTART_BROKER:
            return chance.uniform(0.0, 1.0)
        case _:
            return 0.0
