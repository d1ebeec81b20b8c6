"""Instants, ordinals and names as they stand in a sentence; what others sent stays plain text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any, Self

#: Of an error so many characters go into a sentence.
LONGEST = 400


@dataclass(frozen=True, slots=True)
class Clock:
    """How instants are told: in the application's time zone, with the date if it is another day.

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


def count(number: int, one: str, more: str | None = None) -> str:
    """``1 time``, ``2 times``."""
    return f"{number} {one if number == 1 else more or f'{one}s'}"


def listed(names: Sequence[str], most: int = 3) -> str:
    """*names* with commas and an "and"; of many the first *most*."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"


def short(text: object) -> str:
    """*text*, or its beginning."""
    whole = str(text)
    return whole if len(whole) <= LONGEST else f"{whole[: LONGEST - 1]}…"
