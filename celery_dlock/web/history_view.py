"""What the history adds to a page: who held a key, and how it went for the tasks of a name.

Without ``dlock_history`` the page says how to have one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.monitoring.history_reader import (
    HistoryEntry,
    HistoryReader,
    TaskTallies,
    TaskTally,
)
from celery_dlock.ops.event_text import happened

#: Events of a key that are read at a time, and of those how many are told.
EVENTS = 200
TOLD = 30

#: What happens to a task again and again while it waits: told once, with how often.
REPEATED = ("Contended", "Rescheduled", "Unavailable")
#: What the periods say in which a key was held; they do not say why a lock was lost.
OF_HOLDS = ("Acquired", "Released")

#: How a hold is drawn, and what that means.
KINDS: Mapping[str, str] = {
    "held": "held",
    "lost": "lost or abandoned",
    "unknown": "end unknown",
}

#: Seconds that are counted over, and for which a count is good.
COUNTED = 3600.0
GOOD_FOR = 10.0

#: Above these somebody has to act: shares of the lease, and of the tasks that waited to their end.
ACQUISITION, TIMEOUT = 0.5, 0.05


@dataclass(frozen=True, slots=True)
class HeldPeriod:
    """One task had the key, with a token, from an instant to another; it ended in a word.

    ``until`` is ``None`` where its end is not known: it holds still, or was killed.
    """

    task_id: str
    task_name: str
    token: int | None
    since: datetime
    until: datetime | None
    ended: str


@dataclass(frozen=True, slots=True)
class EventLine:
    """An event as a sentence, and how often it has happened to its task."""

    entry: HistoryEntry
    sentence: str
    times: int

    @classmethod
    def once(cls, entries: Iterable[HistoryEntry]) -> list[Self]:
        """Each of *entries*, in their order; of what is :data:`REPEATED` the first."""
        entries = list(entries)
        often = Counter((entry.task_id, entry.event) for entry in entries)
        seen = set[tuple[str, str]]()
        lines: list[Self] = []
        for entry in entries:
            what = entry.task_id, entry.event
            repeated = entry.event in REPEATED
            if not (repeated and what in seen):
                lines.append(cls(entry, happened(entry), often[what] if repeated else 1))
            seen.add(what)
        return lines


@dataclass(frozen=True, slots=True)
class KeyHistory:
    """The latest of a key: who held it, the last one first, and what else has happened.

    ``names`` are those of the tasks, by their ids. ``gap`` says why there is nothing; before the
    instant ``earlier`` there may be more.
    """

    holds: tuple[HeldPeriod, ...] = ()
    events: tuple[EventLine, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    earlier: datetime | None = None
    gap: str = ""


class HistoryView:
    """The history of *app*, if there is one; a database that is unavailable is a gap, not an error.

    Between two questions it has no connection.
    """

    def __init__(self, app: Any) -> None:
        self._reader: HistoryReader | None = None
        self._unset = ""
        try:
            self._reader = HistoryReader.from_app(app)
        except ConfigurationError as exc:
            self._unset = str(exc)

    def of_key(self, key: str, before: datetime | None) -> KeyHistory:
        """What happened to *key*, of late or *before* an instant."""
        if self._reader is None:
            return KeyHistory(gap=self._unset)
        try:
            entries = self._reader.of_key(key, EVENTS, before)
        except BackendUnavailable as exc:
            return KeyHistory(gap=str(exc))
        finally:
            self._reader.close()
        events = EventLine.once(entry for entry in entries if entry.event not in OF_HOLDS)
        return KeyHistory(
            tuple(_holds(reversed(entries))),
            tuple(events[:TOLD]),
            {entry.task_id: entry.task_name for entry in entries},
            entries[-1].at if len(entries) == EVENTS else None,
        )

    def of_the_last_hour(self) -> TaskTallies | str:
        """What happened to the tasks, or why that is not known."""
        if self._reader is None:
            return self._unset
        try:
            return self._reader.by_task(datetime.now(UTC) - timedelta(seconds=COUNTED))
        except BackendUnavailable as exc:
            return str(exc)
        finally:
            self._reader.close()


def _holds(entries: Iterable[HistoryEntry]) -> list[HeldPeriod]:
    """Each acquisition with its end, the last one first; *entries* are in order."""
    holds: list[HeldPeriod] = []
    running: dict[str, int] = {}
    for entry in entries:
        if entry.event == "Acquired":
            running[entry.task_id] = len(holds)
            holds.append(
                HeldPeriod(entry.task_id, entry.task_name, entry.token, entry.at, None, "")
            )
        elif entry.event in ("Released", "Lost"):
            number = running.pop(entry.task_id, None)
            if number is not None:
                ended = str(entry.details.get("outcome", "lost"))
                holds[number] = replace(holds[number], until=entry.at, ended=ended)
    return holds[::-1]


@dataclass(frozen=True, slots=True)
class Bar:
    """A hold in a drawing that is a thousand wide; its ``kind`` is a key of :data:`KINDS`."""

    x: float
    width: float
    hold: HeldPeriod
    kind: str


@dataclass(frozen=True, slots=True)
class Strip:
    """The drawing of who held a key, from the first one's beginning to the last one's end, or now.

    The last one is the first of ``bars``.
    """

    since: datetime
    until: datetime
    bars: tuple[Bar, ...]

    @classmethod
    def of(cls, holds: Sequence[HeldPeriod], holding: Collection[tuple[str, int | None]]) -> Self:
        """*holding* are the ids and tokens of those that have the key now."""
        now = datetime.now(UTC)
        first = min((hold.since for hold in holds), default=now)
        last = max((hold.until or now for hold in holds), default=now)
        scale = 1000 / max(1e-6, (last - first).total_seconds())

        def at(instant: datetime) -> float:
            return round((instant - first).total_seconds() * scale, 1)

        def bar(hold: HeldPeriod) -> Bar:
            width = max(1.0, round(at(hold.until or now) - at(hold.since), 1))
            return Bar(at(hold.since), width, hold, kind(hold))

        def kind(hold: HeldPeriod) -> str:
            if hold.until is None and (hold.task_id, hold.token) not in holding:
                return "unknown"
            return "lost" if hold.ended in ("lost", "abandoned") else "held"

        return cls(first, last, tuple(map(bar, holds)))

    @property
    def legend(self) -> dict[str, str]:
        """Those of :data:`KINDS` that are drawn."""
        drawn = {bar.kind for bar in self.bars}
        return {kind: meaning for kind, meaning in KINDS.items() if kind in drawn}


@dataclass(frozen=True, slots=True)
class Reading:
    """A figure as it is, as a share of what it is measured by, and whether that is too much.

    Of what is measured by the *whole* alone, and has no *line*, nothing is.
    """

    value: float | None
    share: float | None
    is_danger: bool

    @classmethod
    def of(cls, value: float | None, whole: float | None, line: float = math.inf) -> Self:
        share = value / whole if value is not None and whole else None
        return cls(value, share, share is not None and share > line)


@dataclass(frozen=True, slots=True)
class Danger:
    """One task's figures, and which of them are beyond a line that asks for somebody to act.

    How many are refused, and for how long a lease that is renewed was held, asks for nobody: that
    is what a key in constant use looks like.
    """

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
            Reading.of(tally.refused, tally.refused + tally.at_once),
            Reading.of(tally.held, tally.ttl),
            Reading.of(tally.timed_out, tally.timed_out + tally.acquired, TIMEOUT),
            Reading.of(tally.stale, 1, 0),
        )

    @classmethod
    def of_all(cls, tallies: Iterable[TaskTally], most: int) -> list[Self]:
        """Those with most dangers first, and then those that were refused most often."""
        dangers = [cls.of(tally) for tally in tallies]
        return sorted(dangers, key=lambda danger: (-danger.dangers, -danger.tally.refused))[:most]

    @property
    def dangers(self) -> int:
        """How many lines are crossed."""
        readings = (self.acquisition, self.timeouts, self.rejects)
        return sum(reading.is_danger for reading in readings)
