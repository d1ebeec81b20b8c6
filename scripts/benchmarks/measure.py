"""Several contestants measured in turns, so that a machine that drifts is fair to all."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Measured:
    """One contestant: what it did a second in each round, and how long each took, if timed."""

    name: str
    rates: tuple[float, ...]
    durations: tuple[float, ...] = ()

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    def ratios_to(self, other: Measured) -> list[float]:
        """Round by round, from the lowest to the highest."""
        pairs = zip(self.rates, other.rates, strict=True)
        return sorted(mine / theirs for mine, theirs in pairs)


def in_turns(contestants: Mapping[str, Callable[[], float]], rounds: int) -> list[Measured]:
    """The rates of each contestant."""
    found = take_turns(contestants, rounds)
    return [Measured(name, tuple(rates)) for name, rates in found.items()]


def take_turns(contestants: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """What each contestant returned, called once a round."""
    found: dict[str, list[T]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, contestant in contestants.items():
            found[name].append(contestant())
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """The value that *share* of all are not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
