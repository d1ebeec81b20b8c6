"""A store in memory that fails when a test says so, and claims on its keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from celery_dlock.core.lease import SECOND, Lease, Monotonic, Term, unsleeping
from celery_dlock.core.state import (
    Claim,
    EnterVerdict,
    LeaveVerdict,
    Outcome,
)
from celery_dlock.errors import BackendUnavailable
from celery_dlock.locks.manager import Keeping, LockManager
from celery_dlock.locks.refused import Refused
from celery_dlock.stores.base import BackendOptions, Reply, Wake
from celery_dlock.stores.memory import MemoryBackend
from celery_dlock.testing import ManualClock

TTL = 9.0
KEYS = ("a", "b", "c")


class TimeLimit(BaseException):
    """As ``SoftTimeLimitExceeded``: raised by a signal, anywhere."""


class Faulty(MemoryBackend):
    """The store in memory; ``fault(operation, key)`` runs before each call, ``late`` after it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        super().__init__(BackendOptions(clock=self.clock))
        self.calls: list[tuple[str, str]] = []
        self.managers: list[LockManager] = []
        self.fault: Callable[[str, str], None] = lambda operation, key: None
        self.late: Callable[[str, str], None] = lambda operation, key: None

    def enter(self, claim: Claim, message: bytes | None = None) -> Reply[EnterVerdict]:
        self.calls.append(("enter", claim.key))
        self.fault("enter", claim.key)
        reply = super().enter(claim, message)
        self.late("enter", claim.key)
        return reply

    def leave(
        self, claim: Claim, outcome: Outcome, message: bytes | None = None
    ) -> Reply[LeaveVerdict]:
        self.calls.append(("leave", claim.key))
        self.fault("leave", claim.key)
        reply = super().leave(claim, outcome, message)
        self.late("leave", claim.key)
        return reply

    @cached_property
    def locks(self) -> LockManager:
        """The manager of the test, where it needs one only."""
        return self.manager()

    def held(self) -> set[str]:
        return {key for key in KEYS if self.peek(key).holders}

    def manager(
        self,
        wake: Callable[[Sequence[Wake]], object] | None = None,
        epoch: int = 0,
        monotonic: Monotonic = unsleeping,
    ) -> LockManager:
        """One that keeps its leases for as long as the test lasts."""
        manager = LockManager(self, wake or nobody_is_woken, epoch, monotonic)
        self.managers.append(manager)
        return manager

    def abandon(self) -> None:
        """What a test has left held is kept no more: lost later, it would fail another test."""
        self.late = self.fault = lambda operation, key: None
        for manager in self.managers:
            manager._keeper.forget(list(manager._keeper._watches))
            manager.close()


def nobody_is_woken(wakes: Sequence[Wake]) -> None:
    assert not wakes


def nobody_is_told(term: Term, reason: str) -> None:
    raise AssertionError(f"{term.key} was lost: {reason}")


KEEPING = Keeping(None, nobody_is_told)


def claims(task: str = "t", keys: Sequence[str] = KEYS, **options: object) -> list[Claim]:
    return [
        Claim(key, f"{task}:0:0", f"nonce-{task}", int(TTL * SECOND), **options)  # type: ignore[arg-type]
        for key in keys
    ]


def taken(answer: Lease | Refused) -> Lease:
    assert isinstance(answer, Lease), answer
    return answer


def watched(manager: LockManager) -> set[str]:
    return {claim.key for claim in manager._keeper._watches}


def nth(number: int, error: BaseException) -> Callable[[str, str], None]:
    """A fault that raises *error* at the *number*-th call, once."""
    count = 0

    def fault(operation: str, key: str) -> None:
        nonlocal count
        count += 1
        if count == number:
            raise error

    return fault


def fails_for(*operations: tuple[str, str]) -> Callable[[str, str], None]:
    def fault(operation: str, key: str) -> None:
        if (operation, key) in operations:
            raise BackendUnavailable(f"no answer to {operation} {key}")

    return fault
