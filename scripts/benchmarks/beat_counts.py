"""Which ticks were due, lost and doubled, and for how long there was none.

A tick of ``-S dlock`` says for which instant it was sent. Others count an interval from their own
now, so no instant is due: one tick is, for each interval that has gone by since the last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

#: What comes after less than so much of an interval is a second tick in the same one.
SAME = 0.9

#: So many seconds before the end nothing is due any more: it may still be on its way.
SLACK = 0.5


@dataclass(frozen=True, slots=True)
class Tick:
    """A tick that was executed: when it was sent (monotonic), by whom, and for which instant."""

    beat: str
    sent: float
    due: datetime | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of the ticks of some entries."""

    due: int = 0
    lost: int = 0
    doubled: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.due + other.due, self.lost + other.lost, self.doubled + other.doubled)


@dataclass(frozen=True, slots=True)
class Window:
    """The time that counts, on the monotonic clock and on that of the wall."""

    began: float
    ended: float
    offset: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    def wall(self, instant: float) -> float:
        return instant + self.offset


def count(ticks: Iterable[Tick], every: float, window: Window) -> Counts:
    """The ticks of one entry."""
    mine = sorted(ticks, key=lambda tick: tick.sent)
    dues = [tick.due.timestamp() for tick in mine if tick.due is not None]
    return _on_grid(dues, every, window) if dues else _by_intervals(mine, every, window)


def silence(ticks: Iterable[Tick], window: Window) -> tuple[float, bool]:
    """The longest time without a tick of any entry, and whether that lasted until the end."""
    inside = sorted(tick.sent for tick in ticks if window.began <= tick.sent <= window.ended)
    gaps = [(after - before, False) for before, after in pairwise([window.began, *inside])]
    last = inside[-1] if inside else window.began
    return max([*gaps, (window.ended - last, True)])


def _on_grid(dues: Sequence[float], every: float, window: Window) -> Counts:
    runs = Counter(round(due / every) for due in dues)
    first = int(window.wall(window.began) // every) + 1
    last = int(window.wall(window.ended - SLACK) // every)
    steps = range(first, last + 1)
    return Counts(
        due=len(steps),
        lost=sum(runs[step] == 0 for step in steps),
        doubled=sum(max(0, runs[step] - 1) for step in steps),
    )


def _by_intervals(ticks: Sequence[Tick], every: float, window: Window) -> Counts:
    before = [tick.sent for tick in ticks if tick.sent < window.began]
    last = before[-1] if before else window.began
    found = Counts()
    for tick in ticks:
        if not window.began <= tick.sent <= window.ended:
            continue
        since = (tick.sent - last) / every
        if since < SAME:
            found += Counts(doubled=1)
        else:
            lost = max(0, _whole(since) - 1)
            found += Counts(due=1 + lost, lost=lost)
            last = tick.sent
    lost = _whole((window.ended - SLACK - last) / every)
    return found + Counts(due=lost, lost=lost)


def _whole(intervals: float) -> int:
    """How many have gone by; what is a little late is so by accident."""
    return int(intervals + (1 - SAME) / 2)
