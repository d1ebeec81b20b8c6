"""One key of the store under test, so that a test reads as what happens to it."""

from __future__ import annotations

from typing import Any

import pytest

from celery_dlock.core.state import Busy, Claim, EnterVerdict, LeaveVerdict, Outcome, Park, Run
from celery_dlock.stores.base import LockBackend, Reply, Swept, Wake
from celery_dlock.testing.contract.words import QUEUE, StoreUnderTest, claim, woken
from celery_dlock.testing.project import ManualClock

DONE, OVER = Outcome.DONE, Outcome.OVER
REPEAT, ABANDONED, UNUSED = Outcome.REPEAT, Outcome.ABANDONED, Outcome.UNUSED


class Key:
    """The key ``key``, or another *name*; terms are those of a claim, durations in seconds."""

    def __init__(self, backend: LockBackend, clock: ManualClock, name: str = "key") -> None:
        self.backend = backend
        self.clock = clock
        self.name = name

    def claim(self, task: str, nonce: str = "1", **terms: Any) -> Claim:
        return claim(task, nonce, key=self.name, **terms)

    def enter(
        self, task: str, nonce: str = "1", message: bytes = b"message", **terms: Any
    ) -> Reply[EnterVerdict]:
        return self.backend.enter(self.claim(task, nonce, **terms), message)

    def asks(self, task: str, nonce: str = "1", **terms: Any) -> EnterVerdict:
        """The verdict for one that asks for the key."""
        return self.enter(task, nonce, **terms).verdict

    def runs(self, *tasks: str, nonce: str = "1", **terms: Any) -> Run:
        """Each of *tasks* gets the key; what the last one is granted."""
        granted: list[Run] = []
        for task in tasks:
            verdict = self.asks(task, nonce, **terms)
            assert isinstance(verdict, Run), (task, verdict)
            granted.append(verdict)
        return granted[-1]

    def refuses(self, task: str, nonce: str = "1", **terms: Any) -> Busy:
        verdict = self.asks(task, nonce, **terms)
        assert isinstance(verdict, Busy), (task, verdict)
        return verdict

    def parks(self, *tasks: str, nonce: str = "1", **terms: Any) -> list[str]:
        """Each of *tasks* leaves its name as a message in the queue; who was woken meanwhile."""
        meanwhile: list[str] = []
        for task in tasks:
            reply = self.enter(task, nonce, message_of(task), **{"wait": QUEUE, **terms})
            assert reply.verdict == Park(), (task, reply)
            meanwhile += woken(reply)
        return meanwhile

    def leave(
        self,
        task: str,
        outcome: Outcome = DONE,
        message: bytes | None = None,
        nonce: str = "1",
        **terms: Any,
    ) -> Reply[LeaveVerdict]:
        return self.backend.leave(self.claim(task, nonce, **terms), outcome, message)

    def leaves(
        self, task: str, outcome: Outcome = DONE, nonce: str = "1", **terms: Any
    ) -> list[str]:
        """Who is woken as *task* leaves."""
        return woken(self.leave(task, outcome, nonce=nonce, **terms))

    def renews(self, task: str, nonce: str = "1", **terms: Any) -> object:
        (verdict,) = self.backend.renew([self.claim(task, nonce, **terms)])
        return verdict

    def cancels(self, task: str) -> list[str]:
        return woken(self.backend.cancel(self.name, task))

    def passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def reap(self) -> tuple[Wake, ...]:
        return self.backend.reap(self.name).wakes

    def sweep(self) -> Swept:
        return self.backend.sweep()

    def sweeps(self) -> list[str]:
        """Who is woken by a sweep."""
        return woken(self.sweep())

    def sweeps_in(self, seconds: float) -> list[str]:
        """Nobody is woken before, and these in so many seconds."""
        self.passes(seconds - MICROSECOND)
        assert self.sweeps() == []
        self.passes(MICROSECOND)
        return self.sweeps()

    @property
    def holders(self) -> list[str]:
        return [holder.task for holder in self.backend.peek(self.name).holders]

    @property
    def turns(self) -> list[str]:
        return [grant.task for grant in self.backend.peek(self.name).grants]

    @property
    def waiting(self) -> list[str]:
        return [entry.task for entry in self.backend.peek(self.name).waiting]

    @property
    def parked(self) -> int:
        return self.backend.peek(self.name).parked


#: In seconds: an instant before and the instant itself are told apart.
MICROSECOND = 0.000_001


def message_of(task: str) -> bytes:
    return f"message of {task}".encode()


class KeyTests(StoreUnderTest):
    @pytest.fixture
    def key(self, backend: LockBackend, clock: ManualClock) -> Key:
        return Key(backend, clock)
