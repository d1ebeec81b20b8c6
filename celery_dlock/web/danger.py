"""The danger lines of the literature, over what happened to the tasks of each name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from celery_dlock.core.events import LEAD
from celery_dlock.monitoring.history_reader import TaskTally

#: Above these: shares of the lease, and of all attempts.
ACQUISITION, CONTENTION, HOLD, TIMEOUT = 0.5, 0.3, 0.8, 0.05


@dataclass(frozen=True, slots=True)
class Reading:
    """A figure as it is, as a share of what it is measured by, and whether that is too much."""

    value: float | None
    share: float | None
    is_danger: bool

    @classmethod
    def of(cls, value: float | None, whole: float | None, line: float) -> Self:
        share = value / whole if value is not None and whole else None
        return cls(value, share, share is not None and share > line)


@dataclass(frozen=True, slots=True)
class Danger:
    """One task's figures beside their danger lines."""

    tally: TaskTally
    acquisition: Reading
    contention: Reading
    hold: Reading
    timeouts: Reading
    rejects: Reading

    @classmethod
    def of(cls, tally: TaskTally) -> Self:
        return cls(
            tally,
            Reading.of(tally.took, tally.ttl, ACQUISITION),
            Reading.of(tally.contended, tally.contended + tally.acquired, CONTENTION),
            Reading.of(tally.held, None if tally.task_name == LEAD else tally.ttl, HOLD),
            Reading.of(tally.timed_out, tally.timed_out + tally.acquired, TIMEOUT),
            Reading.of(tally.stale, 1, 0),
        )

    @classmethod
    def of_all(cls, tallies: Iterable[TaskTally], most: int) -> list[Self]:
        """Those with most dangers first, and then those that were refused most often."""
        found = [cls.of(tally) for tally in tallies]
        return sorted(found, key=lambda one: (-one.dangers, -one.tally.contended))[:most]

    @property
    def dangers(self) -> int:
        """How many lines are crossed."""
        readings = (self.acquisition, self.contention, self.hold, self.timeouts, self.rejects)
        return sum(reading.is_danger for reading in readings)
