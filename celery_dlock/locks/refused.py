"""The answer of the lock store that a key is not to be had."""

from __future__ import annotations

from dataclasses import dataclass

from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import (
    Busy,
    Claim,
    Drop,
    End,
    OperatorHold,
    Park,
    Reason,
    Same,
    task_id_of,
)
from celery_dlock.errors import LockContended

Refusal = Park | Busy | Same | End | Drop


@dataclass(frozen=True, slots=True)
class Refused:
    """The key that was not to be had, and why. Nothing is held.

    Keys that are ``unreserved`` were kept for the task until now: it would have waited for one that
    waits for them. ``because`` is the error that has kept the task from asking for the key.
    """

    claim: Claim
    verdict: Refusal
    because: Exception | None = None
    unreserved: tuple[str, ...] = ()

    @property
    def hold(self) -> OperatorHold | None:
        """The hold by a person under which the key is."""
        return self.verdict.hold if isinstance(self.verdict, Park | Busy) else None

    @property
    def error(self) -> LockContended:
        """The error for a task that does not wait."""
        held = self.verdict if isinstance(self.verdict, Busy | Same) else Busy(None, 0, 0)
        if self.hold is not None:
            return LockContended(self.claim.key, None, held.left / SECOND, self.hold.who)
        key, holder, left = self.claim.key, held.holder, held.left / SECOND
        if holder is None:
            return LockContended(key, None, left)
        return LockContended(key, task_id_of(holder.task), left, by=holder.who)

    @property
    def on_hold_for(self) -> float:
        """Seconds for which the key has been on hold."""
        if self.hold is None or not isinstance(self.verdict, Busy):
            return 0.0
        return (self.hold.until - self.hold.since - self.verdict.left) / SECOND

    @property
    def waits(self) -> bool:
        """Whether the task's message waits for the key in the store."""
        return self.verdict in (Park(), Drop(Reason.WAITING))

    @property
    def is_held(self) -> bool:
        """Whether a task that runs has the key, as far as the answer says."""
        return isinstance(self.verdict, Park | Busy | Same) and self.verdict.holder is not None
