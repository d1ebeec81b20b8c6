"""Wait its turn: the message waits in the lock store, first come, first woken.

It leaves the worker at once, costs no polling and no worker memory, and is published again by
whoever frees the key.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from celery_dlock.contention.base import (
    Complete,
    Contention,
    Decision,
    GiveUp,
    Queueing,
    RunLater,
)
from celery_dlock.contention.fail import Fail
from celery_dlock.contention.reschedule import GRACE, timed_out
from celery_dlock.contention.skip import skipped
from celery_dlock.core.backoff import FullJitter
from celery_dlock.core.checks import duration, quoted
from celery_dlock.errors import ConfigurationError

OVERFLOWS = ("fail", "drop_oldest", "drop_newest")

#: For a message that the store cannot take: it waits in the broker instead.
_INSTEAD = FullJitter()


@dataclass(frozen=True, slots=True)
class Queue:
    """Wait in the key's queue, for at most *max_wait* seconds (``None``: without end).

    At most *max_waiting* messages wait for a key; *overflow* says what happens to one more: it
    fails (``"fail"``), it ends as skipped (``"drop_newest"``), or the first in the queue does
    (``"drop_oldest"``). A task that waited too long fails with
    :exc:`~celery_dlock.LockTimeout`.

    *ordered*: a task takes its place when a worker first sees it (``"arrival"``), or where it is
    published (``"publish"``), which needs the task declared and the store at hand there; only the
    head of the queue goes to the broker. *keep*: the store keeps the message until the task is
    through, so that a worker that dies loses nothing on any broker (of a key with a *limit* above
    32, no more than that run then). *reserve_retries*: the key stays reserved for a task that
    retries, until a minute after it is due; others of the key wait for it.
    """

    max_waiting: int | None = None
    overflow: Literal["fail", "drop_oldest", "drop_newest"] = "fail"
    max_wait: float | None = 86400.0
    ordered: Literal["arrival", "publish"] = "arrival"
    keep: bool = False
    reserve_retries: bool = False

    def __post_init__(self) -> None:
        if self.max_waiting is not None and (
            type(self.max_waiting) is not int or self.max_waiting < 1
        ):
            raise ConfigurationError(
                f"max_waiting is a number from 1 up, got {quoted(self.max_waiting)}"
            )
        if self.overflow not in OVERFLOWS:
            raise ConfigurationError(f"overflow is one of {', '.join(OVERFLOWS)}")
        if self.ordered not in ("arrival", "publish"):
            raise ConfigurationError(
                f'ordered is "arrival" or "publish", got {quoted(self.ordered)}'
            )
        if self.max_wait is not None:
            duration("max_wait", self.max_wait)

    def queueing(self) -> Queueing:
        """What the store needs to know."""
        return Queueing(
            self.max_waiting,
            self.overflow == "drop_oldest",
            self.max_wait,
            at_publish=self.ordered == "publish",
            keep=self.keep,
            reserve_retries=self.reserve_retries,
        )

    def decide(self, contention: Contention) -> Decision:
        """Asked only for a message that the store does not take: full, or too large for it."""
        if not contention.full:
            if self.max_wait is not None and contention.waited >= self.max_wait:
                return GiveUp(timed_out(contention))
            return RunLater(_INSTEAD.delay(contention.attempt, random.random))
        if self.overflow == "drop_newest":
            reason = f"{contention.waiting} messages wait for the key already"
            return Complete(skipped(contention.key, contention.holder, reason))
        return Fail().decide(contention)

    def patience(self, attempt: int) -> float:
        """For a message that waits in the broker instead, as with :class:`Reschedule`."""
        return _INSTEAD.ceiling(attempt) + GRACE


@dataclass(frozen=True, slots=True)
class Replace:
    """One runs, one waits: the newest replaces the one that waits, which ends as skipped."""

    max_wait: float | None = 86400.0

    def __post_init__(self) -> None:
        if self.max_wait is not None:
            duration("max_wait", self.max_wait)

    def queueing(self) -> Queueing:
        """A queue of one."""
        return Queueing(1, drop_oldest=True, max_wait=self.max_wait)

    def decide(self, contention: Contention) -> Decision:
        """Asked only for a message that the store cannot take."""
        return Queue(max_wait=self.max_wait).decide(contention)

    def patience(self, attempt: int) -> float:
        return Queue().patience(attempt)
