"""Helpers of all checks of a configuration: durations, the nearest name, a wrong value quoted."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
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

    Raises :exc:`~celery_dlock.ConfigurationError` that names the option *name*.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    shortest = 0 if zero else SHORTEST_DURATION
    if is_number and shortest <= value <= LONGEST_DURATION:
        return float(value)
    seconds = f"a number of seconds from {shortest} to {LONGEST_DURATION:.0f}"
    raise ConfigurationError(f"{name} must be {seconds}, which are 100 years, got {quoted(value)}")


def optional_duration(name: str, value: Any) -> float | None:
    """The same, or ``None`` for ``None``."""
    return None if value is None else duration(name, value)
