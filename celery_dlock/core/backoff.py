"""How long a refused task waits before it asks again: longer each time, and at random.

Without the randomness all tasks that were refused together come back together.
"""

from __future__ import annotations

import math
import random as chance
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from celery_dlock.core.checks import duration
from celery_dlock.errors import ConfigurationError

#: Not the generator that all of a process share: what others have seeded stays as it is.
CHANCE = chance.SystemRandom()

#: Seconds between two questions of a task that waits in its slot: the first pause and the longest.
ASK_FIRST, ASK_LAST = 0.01, 0.25


def pauses() -> Iterator[float]:
    """Seconds from one question to the next of a task that waits in its slot; without an end."""
    longest = ASK_FIRST
    while True:
        yield longest * CHANCE.uniform(0.5, 1.0)
        longest = min(longest * 2, ASK_LAST)


@runtime_checkable
class Backoff(Protocol):
    """Seconds until the next attempt. ``attempt`` counts the refusals before this one, from 0."""

    @property
    def cap(self) -> float:
        """No delay is ever longer."""
        ...

    def ceiling(self, attempt: int) -> float:
        """The longest that :meth:`delay` can return for this attempt."""
        ...

    def delay(self, attempt: int, random: Callable[[], float]) -> float:
        """The delay to use now; *random* returns numbers from 0 up to but not including 1."""
        ...


@dataclass(frozen=True, slots=True)
class FullJitter:
    """Uniform between 0 and a ceiling that doubles from *base* up to *cap* (all in seconds).

    Raises :exc:`~celery_dlock.ConfigurationError` unless ``0 < base <= cap``. Source: Marc Brooker,
    "Exponential Backoff And Jitter", AWS Architecture Blog, 2015, where of the variants compared
    this one needs the fewest calls.
    """

    base: float = 1.0
    cap: float = 60.0

    def __post_init__(self) -> None:
        if duration("base", self.base) > duration("cap", self.cap):
            raise ConfigurationError(f"base ({self.base}) must not be above cap ({self.cap})")

    def ceiling(self, attempt: int) -> float:
        """``min(cap, base * 2**attempt)``, whatever the attempt."""
        try:
            return min(self.cap, math.ldexp(self.base, attempt))
        except OverflowError:
            return self.cap

    def delay(self, attempt: int, random: Callable[[], float]) -> float:
        """More than 0 and at most the ceiling: a delay of 0 would be a hot loop."""
        return self.ceiling(attempt) * (1.0 - random())
