"""Keys in the order in which a person wants to see them, and what is counted of them.

Some that cannot be read come first, then those that a person has put on hold, then those where
somebody waits longest, and then those that are held longest.

To know who waits, whatever their policy, the state of each key in use is looked at, as who holds it
is: no index is kept of those who come back by themselves, which each of their asks would pay for.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any, Self

from celery_dlock.locks.probe import NOBODYS
from celery_dlock.ops import overview
from celery_dlock.ops.overview import (
    Line,
    lines_in_use,
    lines_of,
    names_in_use,
    time_of,
)
from celery_dlock.runtime import runtime
from celery_dlock.stores.base import LockBackend

#: So many keys that cannot be read stand before all others, and the rest of them at the end.
FIRST_UNREADABLE = 10

_NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(slots=True)
class Counts:
    """Of some keys how many are held, and since when the first that is *now*; how many are waited
    for, how many wait, and since when the first.

    ``more_wait`` and ``unanswered`` are as in a :class:`~celery_dlock.ops.overview.Line`; of
    ``unreadable`` keys nothing else is known.
    """

    now: datetime
    keys: int = 0
    held: int = 0
    waited_for: int = 0
    waiting: int = 0
    more_wait: bool = False
    unanswered: int = 0
    unreadable: int = 0
    oldest: datetime | None = None
    oldest_hold: datetime | None = None

    def add(self, line: Line) -> Line:
        """Count *line*, and give it back."""
        self.keys += 1
        live = [held.since for held in line.holders if held.expires > self.now]
        self.held += bool(live)
        self.oldest_hold = min(filter(None, (self.oldest_hold, *live)), default=None)
        self.unanswered += line.unanswered
        self.unreadable += bool(line.unreadable)
        if line.waits(self.now):
            self.waited_for += 1
            self.waiting += line.waiting
            self.more_wait |= line.more_wait
            self.oldest = min(filter(None, (self.oldest, line.oldest)), default=None)
        return line

    def urgency(self, line: Line) -> tuple[bool, datetime, datetime, str]:
        """The sort key of *line*: the most urgent has the smallest."""
        oldest = line.oldest if line.waits(self.now) else None
        since = min((held.since for held in line.holders), default=_NEVER)
        return not line.hold, oldest or _NEVER, since, line.key

    def is_waited_for(self, line: Line) -> bool:
        """Whether anybody waits for it, has been woken, or that cannot be read."""
        has_turn = line.woken or line.reserved
        return bool(has_turn or line.unreadable) or line.waits(self.now)


def counted(backend: LockBackend, lines: Iterator[Line]) -> tuple[Counts, Iterator[Line]]:
    """What *lines* are to be counted in, and these.

    The time is asked after the first of them: a store that hangs is asked once.
    """
    first = list(islice(lines, 1))
    return Counts(time_of(backend)), chain(first, lines)


@dataclass(frozen=True, slots=True)
class Selection:
    """The first of some keys, and what is counted of all of them."""

    lines: tuple[Line, ...]
    counts: Counts
    now: datetime


def most_urgent(
    app: Any, limit: int | None = 100, *, match: str = "", waiting: bool = False
) -> Selection:
    """The *limit* most urgent keys with *match* in their name; with *waiting* only those that
    somebody waits for. All keys in use are looked at.

    Raises :exc:`~celery_dlock.BackendUnavailable`.
    """
    backend = runtime(app).existing_store()
    counts, in_use = counted(backend, lines_in_use(backend, match))
    lines = (counts.add(line) for line in in_use if not waiting or counts.is_waited_for(line))
    return Selection(tuple(_first(limit, lines, counts)), counts, time_of(backend))


def _first(limit: int | None, lines: Iterable[Line], counts: Counts) -> list[Line]:
    """The most urgent; what cannot be read is first, but no long list of it hides the others."""
    unreadable: list[Line] = []

    def readable() -> Iterator[Line]:
        for line in lines:
            if line.unreadable:
                unreadable.append(line)
            else:
                yield line

    if limit is None:
        urgent = sorted(readable(), key=counts.urgency)
    else:
        urgent = heapq.nsmallest(limit, readable(), key=counts.urgency)
    unreadable.sort(key=lambda line: line.key)
    first, others = unreadable[:FIRST_UNREADABLE], unreadable[FIRST_UNREADABLE:]
    return [*first, *urgent, *others][:limit]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The keys in use, up to a number, the most urgent first, and what is counted of them.

    ``rest`` is where :func:`~celery_dlock.ops.overview.page` goes on with the keys that were not
    looked at; ``None`` if there are none. ``latency`` is for how many seconds the store was asked
    about one key that nobody uses.
    """

    lines: tuple[Line, ...]
    counts: Counts
    rest: str | None
    latency: float
    now: datetime

    @classmethod
    def of(cls, app: Any, most: int) -> Self:
        """About *most* keys, and of more than that those first that messages wait for.

        Raises :exc:`~celery_dlock.BackendUnavailable`.
        """
        backend = runtime(app).existing_store()
        began = time.perf_counter()
        backend.look([NOBODYS])
        latency = time.perf_counter() - began
        counts = Counts(time_of(backend))
        in_use, rest = _some_in_use(backend, most)
        lines = _first(None, map(counts.add, in_use), counts)
        return cls(tuple(lines), counts, rest, latency, time_of(backend))


def _some_in_use(backend: LockBackend, most: int) -> tuple[list[Line], str | None]:
    lines: list[Line] = []
    seen = set[str]()
    for names in names_in_use(backend, waiting=True):
        lines += lines_of(backend, names)
        seen.update(names)
        if len(seen) >= most:
            break
    cursor = ""
    while True:
        page = backend.keys(cursor, overview.BATCH)
        names = [name for name in dict.fromkeys(page.keys) if name not in seen]
        lines += lines_of(backend, names)
        seen.update(names)
        if page.cursor is None or len(seen) >= most:
            return lines, page.cursor
        cursor = page.cursor
