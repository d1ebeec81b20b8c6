"""A round that breaks a promise is made shorter, as long as the part that is left breaks it.

Rounds on real servers depend on chance, so a part that kept its promises once may break them the
next time: what is left is short, not the shortest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """Some of the features that a round has, and of its faults, which are numbered."""

    features: tuple[str, ...]
    faults: tuple[int, ...]

    def smaller(self) -> Iterator[Part]:
        """Half of the faults, then a feature less, then a fault less."""
        half = len(self.faults) // 2
        if half:
            yield Part(self.features, self.faults[:half])
            yield Part(self.features, self.faults[half:])
        if len(self.features) > 1:
            for name in self.features:
                yield Part(tuple(n for n in self.features if n != name), self.faults)
        for fault in self.faults:
            yield Part(self.features, tuple(n for n in self.faults if n != fault))


def shrunk(part: Part, breaks: Callable[[Part], bool], tries: int) -> Part:
    """The last part of which *breaks* said yes, of so many at the most; or *part*."""
    found = True
    while found:
        found = False
        for smaller in part.smaller():
            if not tries:
                return part
            tries -= 1
            if breaks(smaller):
                part, found = smaller, True
                break
    return part
