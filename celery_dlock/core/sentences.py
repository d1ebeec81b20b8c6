"""Numbers, names, durations and long texts as they are written in sentences."""

from __future__ import annotations

from collections.abc import Sequence

#: Of an error so many characters go into a sentence.
LONGEST_ERROR = 400


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
    return whole if len(whole) <= LONGEST_ERROR else f"{whole[: LONGEST_ERROR - 1]}…"
