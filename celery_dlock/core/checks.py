"""What every check of a configuration needs: seconds, the name meant, a wrong value in an error."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

from celery_dlock.errors import ConfigurationError

#: Seconds. No lock lasts longer, however it is given: a store and a calendar can say so much.
LONGEST_DURATION = 100 * 365.25 * 86_400
#: What is shorter is over before anybody could have used it.
SHORTEST_DURATION = 0.001

#: Signs of a wrong value that an error quotes.
_QUOTED = 120
#: Of an address only the scheme is quoted: the rest may have a password.
_ADDRESS = re.compile(r"//.*", re.DOTALL)


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The end of a message about an unknown *name*: the nearest of *known*, or all of them."""
    names = {entry.lower(): entry for entry in sorted(known)}
    near = difflib.get_close_matches(str_of(name).lower(), names, n=1)
    if near:
        return f"did you mean {names[near[0]]!r}?"
    return f"known: {', '.join(names.values()) or 'none'}"


def str_of(name: object) -> str:
    """*name* if it is one; of what is too long for a name, the beginning."""
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
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    least = 0 if zero else SHORTEST_DURATION
    if number and least <= value <= LONGEST_DURATION:
        return float(value)
    what = f"a number of seconds from {least} to {LONGEST_DURATION:.0f}, which are 100 years"
    raise ConfigurationError(f"{name} must be {what}, got {quoted(value)}")


def optional_duration(name: str, value: Any) -> float | None:
    """The same, or ``None`` for ``None``."""
    return None if value is None else duration(name, value)
