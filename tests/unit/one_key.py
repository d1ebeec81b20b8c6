"""One key and a hand-moved clock, so that a test reads as what happens to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from celery_dlock.core import turns
from celery_dlock.core.operations import (
    Cancel,
    DeadLetter,
    Enter,
    HandBack,
    Leave,
    Operation,
    Reap,
    Renew,
    Replay,
)
from celery_dlock.core.state import (
    Cause,
    Claim,
    Dead,
    Ending,
    EnterVerdict,
    KeyState,
    LeaveVerdict,
    Mode,
    Outcome,
    RenewVerdict,
    WaitMode,
)

V = TypeVar("V")

TTL = 30_000_000
PATIENCE = 10_000_000
START = 1_800_000_000_000_000


def claim(task: str, nonce: str = "1", **options: Any) -> Claim:
    defaults: dict[str, Any] = {"ttl": TTL, "patience": PATIENCE, "done_ttl": 1}
    if "limit" in options:
        defaults["mode"] = Mode.LIMITED
    return Claim("key", task, nonce, **{**defaults, **options})


def queued(task: str, nonce: str = "1", **options: Any) -> Claim:
    return claim(task, nonce, wait=WaitMode.QUEUE, **options)


def kept(task: str, nonce: str = "1", **options: Any) -> Claim:
    """A claim whose message stays with the store while its task runs."""
    return queued(task, nonce, keep=True, **options)


def published(task: str, nonce: str = "published", **options: Any) -> Claim:
    """A claim of a publisher, which asks for a turn and not for the key."""
    return claim(task, nonce, wait=WaitMode.ENQUEUE, **options)


def place(task: str, nonce: str = "1", **options: Any) -> Claim:
    return claim(task, nonce, wait=WaitMode.PLACE, **options)


def reader(task: str, nonce: str = "1", **options: Any) -> Claim:
    return claim(task, nonce, mode=Mode.SHARED, **options)


class OneKey:
    """Applies the rules and remembers the state; tokens count 1, 2, 3; instants in microseconds."""

    def __init__(self) -> None:
        self.state = KeyState()
        self.now = START
        self.tokens = 0
        self.wakes: list[str] = []
        self.endings: dict[str, Ending] = {}
        self.dead: dict[str, Dead] = {}

    def enter(self, mine: Claim) -> EnterVerdict:
        self.tokens += 1
        return self._applied(Enter(mine))

    def leave(self, mine: Claim, outcome: Outcome = Outcome.DONE) -> LeaveVerdict:
        return self._applied(Leave(mine, outcome))

    def renew(self, mine: Claim) -> RenewVerdict:
        return self._applied(Renew(mine))

    def reap(self) -> None:
        self._applied(Reap("key"))

    def cancel(self, task: str) -> bool:
        return self._applied(Cancel("key", task))

    def dead_letter(self, task: str, cause: Cause = Cause.UNREADABLE) -> bool:
        return self._applied(DeadLetter("key", task, cause))

    def hand_back(self, task: str) -> bool:
        return self._applied(HandBack("key", task))

    def replay(self, task: str) -> bool:
        dead = self.dead.pop(task, None)
        self.state = replace(self.state, dead=(dead,) if dead else ())
        return self._applied(Replay("key", task))

    def due_in(self) -> int | None:
        """How long until the key is due; ``None`` for never."""
        at = turns.due(self.state)
        return None if at is None else at - self.now

    def passes(self, microseconds: int) -> None:
        self.now += microseconds

    @property
    def running(self) -> list[str]:
        return [h.task for h in self.state.holders]

    @property
    def waiting(self) -> list[str]:
        return [w.task for w in self.state.waiting]

    @property
    def woken(self) -> list[str]:
        return [g.task for g in self.state.grants]

    def _applied(self, operation: Operation[V]) -> V:
        step = operation.apply(self.state, self.now, self.tokens)
        assert all(step.state.first <= w.rank <= step.state.last for w in step.state.waiting)
        self.state, self.wakes = _stored(step.state), [turn.task for turn in step.wakes]
        self.dead |= {dead.task: dead for dead in step.state.dead}
        self.endings = {turn.task: turn.ending for turn in step.wakes if turn.ending}
        return step.verdict


def _stored(state: KeyState) -> KeyState:
    """*state* as a store reads it again: the ranks at both ends are those of the queue."""
    ranks = [w.rank for w in state.waiting] or [0]
    return replace(state, first=min(ranks), last=max(ranks), dead=())
