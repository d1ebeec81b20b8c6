"""Instants, durations, ordinals, names and events in sentences, for timelines and answers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any, Self

from celery_dlock.core.sentences import short
from celery_dlock.monitoring.history_reader import HistoryEntry

#: Seconds of a day, an hour and a minute, with the unit below.
_UNITS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


@dataclass(frozen=True, slots=True)
class Clock:
    """How instants are written: in the application's time zone, with the date of another day.

    *now* is the lock store's, where that was asked: what it says is compared with it.
    """

    now: datetime
    zone: tzinfo

    @classmethod
    def of(cls, app: Any, now: datetime | None = None) -> Self:
        return cls(now or datetime.now(UTC), app.timezone)

    def tell(self, instant: datetime) -> str:
        local, today = instant.astimezone(self.zone), self.now.astimezone(self.zone)
        return f"{local:%H:%M:%S}" if local.date() == today.date() else f"{local:%Y-%m-%d %H:%M:%S}"

    def tell_seconds(self, since_1970: object) -> str | None:
        """The same for what others have written down; ``None`` for what is no instant."""
        if not isinstance(since_1970, int | float):
            return None
        try:
            return self.tell(datetime.fromtimestamp(since_1970, UTC))
        except (ValueError, OverflowError, OSError):
            return None

    def until(self, instant: datetime) -> float:
        """Seconds from now on; negative if it has passed."""
        return (instant - self.now).total_seconds()


def ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{({1: 'st', 2: 'nd', 3: 'rd'}).get(number % 10, 'th')}"


def lasting(duration: float) -> str:
    """A *duration* in seconds in its two largest units, rounded down: ``48 s``, ``3 min 5 s``."""
    whole = max(0, int(duration))
    for size, unit, below, smaller in _UNITS:
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {unit} {rest} {smaller}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def describe(entry: HistoryEntry, clock: Clock) -> str:
    """What happened and when, such as ``at 12:03:11 took 'order:42' with token 17``."""
    return f"at {clock.tell(entry.at)} {happened(entry)}"


def happened(entry: HistoryEntry) -> str:
    """The same without when."""
    if event := entry.told():
        return event.sentence()
    about = {"key": entry.key, "token": entry.token, "task_id": entry.task_id}
    return f"{entry.event} {entry.key or ''} {short({**entry.details, **about})}"
