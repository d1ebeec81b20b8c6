"""Whether two clocks show the same, told by an answer that was given between two looks at ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

#: Seconds since 1970 on this host.
Clock = Callable[[], float]

#: Seconds that two clocks may differ by.
TOLERATED = 1.0


@dataclass(frozen=True, slots=True)
class Offset:
    """By how many seconds another clock is ahead of ours, at the least and at the most."""

    least: float
    most: float

    @property
    def certain(self) -> float:
        """Seconds that the clocks differ by for certain, below 0 when the other is behind."""
        if self.least > 0:
            return self.least
        return min(self.most, 0.0)

    def against(self, other: Offset) -> Offset:
        """By how much the clock of this one is ahead of that of *other*."""
        return Offset(self.least - other.most, self.most - other.least)

    @property
    def wrong(self) -> bool:
        return abs(self.certain) > TOLERATED

    def __str__(self) -> str:
        ahead = self.certain
        return f"{abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'}"


def measured(clock: Clock, ask: Callable[[], float], unit: float = 0.0) -> Offset:
    """How far the clock is ahead that *ask* tells, in steps of *unit* seconds."""
    sent = clock()
    told = ask()
    received = clock()
    return Offset(told - received, told + unit - sent)
