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
    #: A kind of task that it does not know, as one of another release.
    misses: str


class Ending(StrEnum):
    """How a body ends, if it is left alone."""

    OK = "ok"
    FAILS = "fails"
    RETRIES = "retries"
    REQUEUES = "requeues"
    IS_REPLACED = "is replaced"
    EXTENDS = "extends its lease"
    NESTS = "takes another key, and its own again"
    AWAITS = "awaits another key, and its own again"


class Canvas(StrEnum):
    """What a task is called with; what comes behind it is called with the same key."""

    ALONE = "alone"
    CHAIN = "another one in a chain"
    GROUP = "another one beside it"
    CHORD = "another one beside it, and one behind both"
    CHAIN_OF_CHORD = "a chord behind it"


#: A call of this kind is no task, but code that holds a key by ``lock()``.
PLAIN = "lock()"


@dataclass(frozen=True, slots=True)
class Call:
    """A task *kind* is called *at* an instant; its body takes *steps*, in seconds."""

    at: float
    kind: str
    key: str
    steps: tuple[float, ...]
    ending: Ending = Ending.OK
    countdown: float = 0.0
    expires: float | None = None
    canvas: Canvas = Canvas.ALONE


class Kind(StrEnum):
    """What is struck: a process at a step, or one call of the store or the broker."""

    KILL_CHILD = "a child is killed"
    KILL_WORKER = "a worker is killed with its children"
    KILL_MAIN = "a main process is killed"
    STOP = "a worker is told to stop"
    STOP_COLD = "a worker is told to stop at once"
    FREEZE = "a process stands still"
    DISCONNECT = "a worker loses the broker"
    COPY = "a message is copied"
    REVOKE = "a task is revoked"
    TERMINATE = "a task is revoked, and its body ended"
    SOFT_LIMIT = "a soft time limit is over"
    HOLD = "a key is put on hold"
    STORE_AWAY = "the store is away"
    BROKER_AWAY = "the broker is away"
    STORE_REFUSES = "a call of the store is refused"
    STORE_LOSES = "an answer of the store is lost"
    STORE_BEFORE = "a call reaches the store late"
    STORE_AFTER = "an answer of the store comes late"
    BROKER_REFUSES = "a publish is refused"
    BROKER_LOSES = "a publish is not confirmed"
    BROKER_MISSES = "a publish finds no exchange"


OF_STORE = frozenset({Kind.STORE_REFUSES, Kind.STORE_LOSES, Kind.STORE_BEFORE, Kind.STORE_AFTER})
OF_BROKER = frozenset({Kind.BROKER_REFUSES, Kind.BROKER_LOSES, Kind.BROKER_MISSES})
#: In the steps that are told: what is done to a worker, and not by it.
STRIKES = ("CRASH", "child of", "is delivered twice")


class Beside(StrEnum):
    """Whether there is a queue for woken messages."""

    THERE = "it is there"
    OFF = "it is not to be made"
    REFUSED = "the broker does not let it be declared"


class Stranger(StrEnum):
    """A worker that can publish nothing of what waits."""

    NONE = ""
    OF_BROKER = "a worker of another broker"
    OF_RELEASE = "a worker of another release"


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
    calls: Sequence[Call] = ()
    faults: Sequence[Fault] = ()
    #: Messages are acknowledged when they have run, but for those of some tasks.
    late: bool = True
    #: Bytes of the longest message that the store keeps.
    longest: int = 10_000
    #: Seconds for which a worker that is told to stop at once lets bodies go on.
    softly: float = 0.0
    #: As a worker loses its connection, what it runs is cancelled.
    cancels: bool = False
    #: How processes call the broker, if they do not agree on a name; each takes one of them.
    urls: Sequence[str] = ()
    beside: Beside = Beside.THERE
    #: Queues are quorum queues, over which RabbitMQ waits for countdowns.
    quorum: bool = False
    #: Beside them runs one that no message is delivered to, and which has the same store.
    stranger: Stranger = Stranger.NONE

    @property
    def keeps_all(self) -> bool:
        """Whether no message is too long for the store."""
        return self.longest == max(LONGEST)

    def without(self, *, call: int | None = None, fault: int | None = None) -> Plan:
        calls = [each for n, each in enumerate(self.calls) if n != call]
        return replace(
            self, calls=calls, faults=[each for n, each in enumerate(self.faults) if n != fault]
        )


#: Seconds between two looks of a body at its lease; the longest outlasts one that is not renewed.
STEPS = (0.0, 0.1, 1.0, 12.0, 40.0)
LONG_STEPS = (12.0, 40.0)
#: Bytes of a message that may be longer than any, than some, or than none.
LONGEST = (10_000, 10_000, 10_000, 10_000, 10_000, 1_000, 10)
#: Of one broker each: ways to spell its address.
URLS: Sequence[Sequence[str]] = (
    *[()] * 8,
    ("amqp://guest@localhost//", "pyamqp://me:secret@127.0.0.1:5672//", "amqp://[::1]/%2F"),
    ("amqp://one/shop;amqp://two/shop", "amqp://me:secret@TWO:5672/shop;amqp://one/shop"),
    ("redis://localhost", "redis://:secret@127.0.0.1:6379/0"),
    (
        "sentinel://one:26379/2;sentinel://two",
        "sentinel://two:26379/2;sentinel://:secret@one:26379",
    ),
    ("redis+socket:///run/redis.sock", "redis+socket://me:secret@/run/redis.sock?virtual_host=0"),
    ("sqla+postgresql://me@host/shop", "sqla+postgresql://you:secret@HOST:5432/shop"),
)


#: Tasks, and what strikes them more often than chance would, for what comes of it is seldom.
THEMES: Sequence[tuple[Sequence[str], Sequence[Kind]]] = (
    # Published again, and the broker does not take it.
    (("rescheduled", "gives_up", "unique_start"), (Kind.BROKER_AWAY, Kind.BROKER_REFUSES)),
    # Revoked as it waits, and received by who does not know that.
    (("queued", "unique", "kept"), (Kind.REVOKE, Kind.REVOKE, Kind.KILL_WORKER, Kind.STOP)),
    # Called as the store does not answer.
    (
        ("debounced", "unique", "ordered"),
        (Kind.STORE_AWAY, Kind.STORE_REFUSES, Kind.STORE_LOSES),
    ),
    # Its turn has come at a limit, and an earlier key is taken.
    (("limits", "several"), (Kind.KILL_CHILD, Kind.KILL_WORKER, Kind.STORE_AWAY, Kind.COPY)),
)
#: What only the next theme has, so that the plans of all other seeds stay what they were.
BY_PLAN = ("by_plan", "back_by_plan", "published_by_plan", "plan_and_all", "all_and_plan")
RARE = ("impatient_limit", *BY_PLAN)
#: One waits at its own key for another, and that at a limit on hold. One plan of twenty has it.
HELD_UP: tuple[Sequence[str], Sequence[Kind]] = (
    ("impatient_limit", "impatient_limit", "limits"),
    (Kind.HOLD, Kind.HOLD, Kind.KILL_WORKER, Kind.STORE_AWAY),
)
#: Chains that keep their key, among strangers. As many plans have it.
CHAINED: tuple[Sequence[str], Sequence[Kind]] = (
    ("reserves", "reserves", "reserves", "queued", "rescheduled", "skips"),
    (Kind.KILL_CHILD, Kind.KILL_WORKER, Kind.KILL_MAIN, Kind.STORE_LOSES, Kind.COPY, Kind.REVOKE),
)
#: Limits that rise and fall while tasks wait, at one key and at two in both orders. As many, too.
PLANNED: tuple[Sequence[str], Sequence[Kind]] = (
    BY_PLAN,
    (Kind.KILL_CHILD, Kind.KILL_WORKER, Kind.STORE_AWAY, Kind.STORE_LOSES, Kind.COPY, Kind.HOLD),
)


def draw(seed: int, kinds: Sequence[str]) -> Plan:
    """The plan of *seed*, of tasks of some of *kinds*."""
    random, chance, rare = Random(seed), Random(seed + 1), Random(seed + 2)
    among = [kind for kind in kinds if kind not in RARE]
    struck = list(Kind)
    has_theme = chance.random() < 0.3
    theme = chance.choice(THEMES) if has_theme else None
    if rare.random() < 0.05:
        theme = HELD_UP
    elif rare.random() < 0.05:
        theme = CHAINED
    elif rare.random() < 0.05:
        theme = PLANNED
    if theme is not None:
        its, strikers = theme
        struck = list(strikers)
        among = [kind for kind in its if kind in kinds] or among
    few = random.sample(among, min(len(among), random.choice((1, 1, 2, 3))))
    few += [PLAIN] * random.choice((0, 0, 0, 1))
    keys = random.choice(("a", "a", "ab"))
    expiries = random.choice(((None,), (None,), (None, 1.0, 30.0)))
    canvases = random.choice((*[(Canvas.ALONE,)] * 3, tuple(Canvas)))
    canvases = (Canvas.CHAIN, Canvas.ALONE) if theme is CHAINED else canvases
    endings = random.choice(
        (
            (Ending.OK,),
            (Ending.OK, Ending.OK, Ending.FAILS),
            (Ending.OK, Ending.RETRIES),
            (Ending.OK, Ending.NESTS, Ending.AWAITS),
            tuple(Ending),
        )
    )
    steps = random.choice((STEPS, STEPS, LONG_STEPS))
    calls = [
        Call(
            at=random.choice((0.0, 0.0, 0.5, 3.0, 20.0)),
            kind=random.choice(few),
            key=random.choice(keys),
            steps=tuple(random.choice(steps) for _ in range(random.randint(0, 2))),
            ending=random.choice(endings),
            countdown=random.choice((0.0, 0.0, 0.0, 2.0)),
            expires=random.choice(expiries),
            canvas=random.choice(canvases),
        )
        for _ in range(random.randint(2, 6))
    ]
    strikes = random.sample(struck, min(len(struck), random.choice((0, 1, 2, 4))))
    last_step = 60 * len(calls)
    faults = [
        Fault(
            kind,
            at=random.randrange(6 * len(calls) if kind in OF_STORE | OF_BROKER else last_step),
            seconds=random.choice((0.5, 5.0, 35.0)),
            which=random.randrange(100),
        )
        for kind in strikes
        for _ in range(random.choice((1, 1, 2)))
    ]
    hears = any(expiries) or not {Kind.REVOKE, Kind.TERMINATE}.isdisjoint(strikes)
    crews = [
        Crew(
            slots=random.choice((1, 1, 2)),
            prefetch=random.choice((1, 4)),
            prefork=random.random() < 0.8,
            hears_revocations=hears,
            misses=random.choice((*few, *[""] * 30)),
        )
        for _ in range(random.choice((1, 2, 2)))
    ]
    if theme is PLANNED:  # as many as can meet at one key
        calls = [replace(call, key="a", steps=call.steps or (12.0,)) for call in (*calls, *calls)]
        crews = [replace(crew, slots=3) for crew in crews]
    stays, longest = random.choice((0.0, 0.5, 0.9)), random.choice(LONGEST)
    return Plan(
        seed,
        stays,
        crews,
        calls,
        faults,
        late=random.random() < (0.5 if has_theme else 0.8),
        longest=longest,
        softly=random.choice((0.0, 5.0)),
        cancels=random.random() < 0.3,
        urls=random.choice(URLS),
        beside=random.choice((*[Beside.THERE] * 8, *Beside)),
        quorum=random.random() < 0.15,
        stranger=random.choice((*[Stranger.NONE] * 8, *Stranger)),
    )
