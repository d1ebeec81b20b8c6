"""What happens in one schedule, drawn from its seed: workers, calls, faults.

Each draws a mixture of its own: some kinds of tasks on few keys, and few kinds of faults.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random


@dataclass(frozen=True, slots=True)
class Crew:
    """One worker: how many *slots* it has, and how many messages it takes for each."""

    slots: int
    prefetch: int
    prefork: bool
    hears_revocations: bool


class Ending(StrEnum):
    """How a body ends, if it is left alone."""

    OK = "ok"
    FAILS = "fails"
    RETRIES = "retries"
    REQUEUES = "requeues"
    IS_REPLACED = "is replaced"
    EXTENDS = "extends its lease"


@dataclass(frozen=True, slots=True)
class Call:
    """A task *kind* is called *at* an instant; its body takes *steps*, in seconds."""

    at: float
    kind: str
    key: str
    steps: tuple[float, ...]
    ending: Ending = Ending.OK
    countdown: float = 0.0


class Kind(StrEnum):
    """What is struck: a process at a step, or one call of the store or the broker."""

    KILL_CHILD = "a child is killed"
    KILL_WORKER = "a worker is killed with its children"
    KILL_MAIN = "a main process is killed"
    STOP = "a worker is told to stop"
    FREEZE = "a process stands still"
    DISCONNECT = "a worker loses the broker"
    COPY = "a message is copied"
    REVOKE = "a task is revoked"
    STORE_AWAY = "the store is away"
    BROKER_AWAY = "the broker is away"
    STORE_REFUSES = "a call of the store is refused"
    STORE_LOSES = "an answer of the store is lost"
    STORE_BEFORE = "a call reaches the store late"
    STORE_AFTER = "an answer of the store comes late"
    BROKER_REFUSES = "a publish is refused"
    BROKER_LOSES = "a publish is not confirmed"


OF_STORE = frozenset({Kind.STORE_REFUSES, Kind.STORE_LOSES, Kind.STORE_BEFORE, Kind.STORE_AFTER})
OF_BROKER = frozenset({Kind.BROKER_REFUSES, Kind.BROKER_LOSES})


@dataclass(frozen=True, slots=True)
class Fault:
    """*at* is the number of a step, or of a call; *which* chooses the victim."""

    kind: Kind
    at: int
    seconds: float
    which: int


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    stays: float
    crews: Sequence[Crew]
    calls: Sequence[Call]
    faults: Sequence[Fault]

    def without(self, *, call: int | None = None, fault: int | None = None) -> Plan:
        calls = [each for n, each in enumerate(self.calls) if n != call]
        return replace(
            self, calls=calls, faults=[each for n, each in enumerate(self.faults) if n != fault]
        )


#: Seconds between two looks of a body at its lease; the longest outlasts one that is not renewed.
STEPS = (0.0, 0.1, 1.0, 12.0, 40.0)


def draw(seed: int, kinds: Sequence[str]) -> Plan:
    """The plan of *seed*, of tasks of some of *kinds*."""
    random = Random(seed)
    few = random.sample(kinds, random.choice((1, 1, 2, 3)))
    keys = random.choice(("a", "a", "ab"))
    endings = random.choice(
        (
            (Ending.OK,),
            (Ending.OK, Ending.OK, Ending.FAILS),
            (Ending.OK, Ending.RETRIES),
            tuple(Ending),
        )
    )
    calls = [
        Call(
            at=random.choice((0.0, 0.0, 0.5, 3.0, 20.0)),
            kind=random.choice(few),
            key=random.choice(keys),
            steps=tuple(random.choice(STEPS) for _ in range(random.randint(0, 2))),
            ending=random.choice(endings),
            countdown=random.choice((0.0, 0.0, 0.0, 2.0)),
        )
        for _ in range(random.randint(2, 6))
    ]
    strikes = random.sample(list(Kind), random.choice((0, 1, 2, 4)))
    steps = 60 * len(calls)
    faults = [
        Fault(
            kind,
            at=random.randrange(6 * len(calls) if kind in OF_STORE | OF_BROKER else steps),
            seconds=random.choice((0.5, 5.0, 35.0)),
            which=random.randrange(100),
        )
        for kind in strikes
        for _ in range(random.choice((1, 1, 2)))
    ]
    hears = Kind.REVOKE in strikes
    crews = [
        Crew(random.choice((1, 1, 2)), random.choice((1, 4)), random.random() < 0.8, hears)
        for _ in range(random.choice((1, 2, 2)))
    ]
    return Plan(seed, random.choice((0.0, 0.5, 0.9)), crews, calls, faults)
