"""What every check of a configuration needs: seconds, how many may hold, the name meant."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import Any

from celery_dlock.errors import ConfigurationError


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown *name*: the nearest of *known*, or all of them."""
    names = {entry.lower(): entry for entry in sorted(known)}
    near = difflib.get_close_matches(name.lower(), names, n=1)
    if near:
        return f"did you mean {names[near[0]]!r}?"
    return f"known: {', '.join(names.values()) or 'none'}"


def duration(name: str, value: Any, *, zero: bool = False) -> float:
    """*value* as seconds, finite and greater than 0; with *zero*, 0 is allowed too.

    Raises :exc:`~celery_dlock.ConfigurationError` that names the option *name*.
    """
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and (0 < value < math.inf or (zero and value == 0)):
        return float(value)
    least = "0 or more" if zero else "more than 0"
    raise ConfigurationError(f"{name} must be a number of seconds, {least}, got {value!r}")


def check_limit(limit: Any, *, shared: bool) -> None:
    """Raise :exc:`~celery_dlock.ConfigurationError` unless so many may hold a key at once."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise ConfigurationError(f"limit= is a number from 1 up, got {limit!r}")
    if shared and limit != 1:
        raise ConfigurationError("shared=True has no limit=: readers run together")
