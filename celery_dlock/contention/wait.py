"""Wait in the worker slot: for locks that are held for moments."""

from __future__ import annotations

from dataclasses import dataclass

from celery_dlock.contention.base import Contention, Decision, GiveUp, WaitHere
from celery_dlock.contention.reschedule import timed_out
from celery_dlock.core.checks import duration


@dataclass(frozen=True, slots=True)
class Wait:
    """Keep asking for *timeout* seconds, then fail with :exc:`~celery_dlock.LockTimeout`.

    The slot is occupied meanwhile. A key that all slots wait for, while its holder waits for a
    slot, is a deadlock that only the timeout ends.
    """

    timeout: float = 5.0

    def __post_init__(self) -> None:
        duration("timeout", self.timeout, zero=True)

    def decide(self, contention: Contention) -> Decision:
        left = self.timeout - contention.waited
        return WaitHere(left) if left > 0 else GiveUp(timed_out(contention))

    def patience(self, attempt: int) -> float:
        """A place is kept from one question to the next, which are fractions of a second apart."""
        return 1.0
