"""Helpers of all checks of a configuration: durations, the nearest name, a wrong value quoted."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from celery_dlock.errors import ConfigurationError

#: Seconds: no longer than any store and any calendar can express.
LONGEST_DURATION = 100 * 365.25 * 86_400
#: A shorter lock is over before anybody can use it.
SHORTEST_DURATION = 0.001

#: How many characters of a wrong value an error quotes.
_QUOTED = 120
#: Of an address only the scheme is quoted: the rest may have a password.
_ADDRESS = re.compile(r"//.*", re.DOTALL)

#: How people write a time, and the seconds of its units.
_UNIT_SECONDS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
_TIME_TEXT = re.compile("".join(rf"(?:(\d{{1,6}}){unit})?" for unit in _UNIT_SECONDS))


def did_you_mean(name: object, candidates: Iterable[str], prefix: str = "") -> str:
    """The end of a message about an unknown *name*: the nearest candidate, or all of them.

    The *prefix* that all candidates have is not compared: it would make all of them similar.
    """
    names = {candidate.lower(): prefix + candidate for candidate in sorted(candidates)}
    matches = difflib.get_close_matches(str_of(name).lower(), names, n=1)
    if matches:
        return f"did you mean {names[matches[0]]!r}?"
    return f"known: {', '.join(names.values()) or 'none'}"


def str_of(name: object) -> str:
    """The beginning of *name*, as much as an error quotes; empty if it is no text."""
    return name[:_QUOTED] if isinstance(name, str) else ""


def quoted(value: object) -> str:
    """*value* as an error shows it: short, and without the password of an address."""
    try:
        text = _ADDRESS.sub("//…", repr(value))
    except Exception:  # whatever a stranger's repr raises, or a number with too many digits
        return f"a {type(value).__name__}"
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…"


def duration(name: str, value: Any, *, zero: bool = False) -> float:
    """*value* as seconds: ``SHORTEST_DURATION`` to ``LONGEST_DURATION``; with *zero*, from 0 on.

    Raises :exc:`~celery_dlock.ConfigurationError` that names the option *name*, and what to write.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    shortest = 0 if zero else SHORTEST_DURATION
    if is_number and shortest <= value <= LONGEST_DURATION:
        return float(value)
    wanted, meant = "a number of seconds", _seconds_meant(value)
    if is_number and value < shortest:
        wanted = f"{shortest:g} s or more"
    elif is_number and value > LONGEST_DURATION:
        wanted = "100 years or less, in seconds"
    write = f": write {meant:.12g}" if meant else ""
    raise ConfigurationError(f"{name} must be {wanted}, got {quoted(value)}{write}")


def _seconds_meant(value: object) -> float | None:
    """What somebody means who writes the text ``1h``, ``90``, or a ``timedelta``."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if not isinstance(value, str):
        return None
    return float(value) if re.fullmatch("[0-9]{1,9}", value) else seconds_of(value)


def seconds_of(time: str) -> float | None:
    """The seconds of a *time* as people write it: ``90s``, ``30m``, ``1h30m``, ``2d``."""
    match = _TIME_TEXT.fullmatch(time)
    parts = zip(match.groups(default="0"), _UNIT_SECONDS.values(), strict=True) if match else ()
    return float(sum(int(number) * unit for number, unit in parts)) or None


def optional_duration(name: str, value: Any) -> float | None:
    """The same, or ``None`` for ``None``."""
    return None if value is None else duration(name, value)
