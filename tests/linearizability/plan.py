"""What some clients are to ask of a store at the same time, drawn from a seed.

Everything is drawn beforehand, also what nobody could know to make sense: that way a plan is a
value, and is asked again as it was. Between the phases everybody is through, and the clock moves.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from celery_dlock.core.operations import (
    Cancel,
    DeadLetter,
    Enter,
    HandBack,
    Leave,
    Operation,
    Postpone,
    Reap,
    Replay,
)
from celery_dlock.core.state import Cause, Claim, Mode, Outcome, WaitMode

V = TypeVar("V")

SECOND = 1_000_000
HOUR = 3_600 * SECOND
#: By the store's own clock; the session of a process on ZooKeeper must last for so long.
LEASE = 5 * SECOND
KEYS = ("order:1", "order:1", "order:2")
TASKS = "abc"
CLIENTS = 4

#: How far the clock moves, so that ends are met exactly, from both sides, and passed by far.
STEPS = [n * SECOND for n in (1, 2, 5, 31, 700, 86_400)] + [SECOND - 1, 1]


@dataclass(frozen=True, slots=True)
class Renewals:
    """The leases of these claims are renewed in one call."""

    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class Sweep:
    """All that is due is reaped."""


Ask = Operation[Any] | Renewals | Sweep


@dataclass(frozen=True, slots=True)
class Phase:
    """The clock moves by *step*, and then each client asks for its own, one after the other."""

    step: int
    asks: tuple[tuple[Ask, ...], ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """By the store's own clock (not *driven*) nothing ends while it is played."""

    seed: int
    driven: bool
    phases: tuple[Phase, ...]


def draw(seed: int, *, strangers: bool = True) -> Plan:
    """Two or three short phases; by the store's own clock a longer one.

    With *strangers* a claim may be released by another client.
    """
    chance = random.Random(seed)
    driven = chance.random() < 0.7
    drawing = _Drawing(chance, driven, strangers)
    lengths = [(2, 5)] * chance.randint(2, 3) if driven else [(5, 9)]
    phases = [
        Phase(
            chance.choice(STEPS),
            tuple(
                tuple(drawing.ask(client) for _ in range(chance.randint(*length)))
                for client in range(CLIENTS)
            ),
        )
        for length in lengths
    ]
    return Plan(seed, driven, tuple(phases))


#: What is asked besides to enter and to leave, and what a claim may have besides its owner and ttl.
KINDS = (
    *("renew", "sweep", "reap", "cancel", "replay", "dead_letter", "hand_back", "enter_again"),
    "postpone",
)
OPTIONS = (
    *("shared", "limit", "wait", "done_ttl", "cooldown", "gives_up", "max_waiting"),
    *(
        "keep",
        "ordered",
        "gives_way",
        "supersedes",
        "successor",
        "again",
        "begun",
        "outcome",
        "own_tasks",
    ),
)


class _Drawing:
    """Draws what the clients of one plan ask. Mostly it is about what they have asked for before.

    Each plan has about half of all kinds and options: what there is less of meets more often.
    """

    def __init__(self, chance: random.Random, driven: bool, strangers: bool) -> None:
        self._chance = chance
        self._strangers = strangers
        self._driven = driven
        self._with = {name for name in OPTIONS if chance.random() < 0.5}
        self._kinds = [name for name in KINDS if chance.random() < 0.5]
        if not driven:
            self._kinds = [name for name in self._kinds if name != "hand_back"]  # waits a second
        self._client = 0
        self._count = 0
        self._asked: list[list[Claim]] = [[] for _ in range(CLIENTS)]
        for self._client in range(CLIENTS):
            self._claim()

    def ask(self, client: int) -> Ask:
        self._client = client
        kinds = ["enter"] * 6 + ["leave"] * 5 + self._kinds
        made: Callable[[], Ask] = getattr(self, f"_{self._chance.choice(kinds)}")
        return made()

    def _enter(self) -> Ask:
        return Enter(self._claim(), self._message())

    def _enter_again(self) -> Ask:
        """The same delivery, as if it had heard nothing."""
        return Enter(self._asked[self._client][-1], self._message())

    def _postpone(self) -> Ask:
        return Postpone(self._claim(), self._message(), self._for(1, 2), self._for(3, 4))

    def _leave(self) -> Ask:
        somebody = (
            self._chance.random() < 0.15 * self._strangers
        )  # as a person does, who names the holder
        claim = replace(
            self._own(self._chance.randrange(CLIENTS) if somebody else self._client),
            successor=self._if("successor", "", self._task()),
            again=self._if("again", False, True),
            begun=not self._if("begun", False, True),
        )
        outcome = self._if("outcome", Outcome.DONE, *Outcome)
        return Leave(claim, outcome, self._message())

    def _renew(self) -> Ask:
        claims = (self._own() for _ in range(self._chance.randint(1, 2)))
        return Renewals(tuple({claim.owner: claim for claim in claims}.values()))

    def _sweep(self) -> Ask:
        return Sweep()

    def _reap(self) -> Ask:
        return Reap(self._own().key)

    def _cancel(self) -> Ask:
        return Cancel(self._own().key, self._task())

    def _replay(self) -> Ask:
        return Replay(self._own().key, self._task())

    def _dead_letter(self) -> Ask:
        return DeadLetter(self._own().key, self._task(), self._chance.choice([*Cause]))

    def _hand_back(self) -> Ask:
        return HandBack(self._own().key, self._task())

    def _own(self, client: int | None = None) -> Claim:
        claims = self._asked[self._client if client is None else client]
        return self._chance.choice(claims[-2:])

    def _task(self) -> str:
        whose = self._client if "own_tasks" in self._with else ""
        return f"{self._chance.choice(TASKS)}{whose}"

    def _message(self) -> bytes:
        self._count += 1
        return f"message {self._count}".encode()

    def _claim(self) -> Claim:
        mine = self._asked[self._client]
        claim = Claim(
            self._chance.choice(KEYS),
            self._task(),
            nonce=f"{self._client}.{len(mine)}",
            ttl=self._for(1, 2, 3, 4) if self._driven else LEASE,
            mode=self._if("shared", Mode.EXCLUSIVE, Mode.SHARED)
            if self._chance.random() < 0.5
            else self._if("limit", Mode.EXCLUSIVE, Mode.LIMITED),
            limit=self._if("limit", 1, 2, 3),
            wait=self._if("wait", WaitMode.QUEUE, *WaitMode),
            patience=self._for(1, 2, 4),
            done_ttl=self._if("done_ttl", 0, self._for(3)),
            cooldown=self._if("cooldown", 0, 0, 0, self._for(2)),
            gives_up=self._if("gives_up", 0, self._for(2, 5)),
            max_waiting=self._if("max_waiting", 0, 1, 2),
            drop_oldest=self._chance.random() < 0.5,
            keep=self._if("keep", False, True),
            ordered=self._if("ordered", False, True),
            gives_way=self._if("gives_way", False, True),
            supersedes=self._if("supersedes", False, True),
            name="pay",
        )
        mine.append(claim)
        return claim

    def _if(self, option: str, usual: V, *others: V) -> V:
        """The *usual* value, or another in a plan with that *option*."""
        return self._chance.choice([usual, *others]) if option in self._with else usual

    def _for(self, *seconds: int) -> int:
        """So long; for ever by a clock that is not handed in."""
        return self._chance.choice(seconds) * SECOND if self._driven else HOUR
