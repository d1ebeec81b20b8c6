"""Rates of several contestants, measured in turns so that a drifting machine is fair to all."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measured:
    """One contestant: what it did a second, in each round."""

    name: str
    rates: tuple[float, ...]

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    def ratio_to(self, other: Measured) -> float:
        """The median of the ratios round by round."""
        pairs = zip(self.rates, other.rates, strict=True)
        return statistics.median(mine / theirs for mine, theirs in pairs)


def in_turns(contestants: Mapping[str, Callable[[], float]], rounds: int) -> list[Measured]:
    """Call each contestant once a round, after a round that does not count."""
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for measured in range(-1, rounds):
        for name, contestant in contestants.items():
            rate = contestant()
            if measured >= 0:
                rates[name].append(rate)
    return [Measured(name, tuple(found)) for name, found in rates.items()]
