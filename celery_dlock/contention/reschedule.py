"""Come back later: the message is published again with a countdown."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from celery_dlock.contention.base import Contention, Decision, GiveUp, RunLater
from celery_dlock.core.backoff import Backoff, FullJitter
from celery_dlock.core.checks import duration, quoted
from celery_dlock.errors import ConfigurationError, LockTimeout

#: How much longer a place is kept than the next attempt can take to be due: delivery takes time.
GRACE = 5.0


@dataclass(frozen=True, slots=True)
class Reschedule:
    """Publish the message again after *backoff*, until *max_attempts* or *max_wait* (seconds).

    The task keeps its id, its ``retries`` and everything that hangs on it. ``None`` means without
    end. It gives up with :exc:`~celery_dlock.LockTimeout`.
    """

    backoff: Backoff = field(default_factory=FullJitter)
    max_attempts: int | None = None
    max_wait: float | None = 3600.0

    def __post_init__(self) -> None:
        if isinstance(self.backoff, type) or not isinstance(self.backoff, Backoff):
            example = "an object such as FullJitter(base=1, cap=60)"
            raise ConfigurationError(f"backoff takes {example}, got {quoted(self.backoff)}")
        attempts = self.max_attempts
        if attempts is not None and (type(attempts) is not int or attempts < 0):
            raise ConfigurationError(f"max_attempts is a number from 0 up, got {quoted(attempts)}")
        if self.max_wait is not None:
            duration("max_wait", self.max_wait, zero=True)

    def decide(self, contention: Contention) -> Decision:
        too_often = self.max_attempts is not None and contention.attempt >= self.max_attempts
        too_long = self.max_wait is not None and contention.waited >= self.max_wait
        if too_often or too_long:
            return GiveUp(timed_out(contention))
        return RunLater(self.backoff.delay(contention.attempt, random.random))

    def patience(self, attempt: int) -> float:
        """A place is kept until the next attempt must have come."""
        return self.backoff.ceiling(attempt) + GRACE


def timed_out(contention: Contention) -> LockTimeout:
    """The error of a task that has waited for long enough."""
    holder = contention.holder
    return LockTimeout(
        contention.key,
        holder.task_id if holder else None,
        holder.seconds_left if holder else 0.0,
        contention.waited,
    )
