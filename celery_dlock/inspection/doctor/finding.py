"""One promise that does not hold, what was seen, and what mends it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

Severity = Literal["broken", "weak", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What the check named ``check`` found at ``where``.

    ``severity``: ``"broken"``: the promise does not hold, ``"weak"``: it does not hold in some
    faults, ``"unknown"``: it could not be seen whether it holds. ``promise`` says what that means
    for tasks, ``found`` what was seen, and ``mend`` is the setting or command that mends it.
    """

    check: str
    severity: Severity
    where: str
    promise: str
    found: str
    mend: str


def asked(where: str, findings: Iterable[Finding]) -> Iterator[Finding]:
    """*findings*, until whatever they ask fails to answer; that is a finding, too."""
    try:
        yield from findings
    except Exception as exc:  # a doctor who faints helps nobody
        yield unanswered(where, exc)


def unanswered(where: str, error: Exception) -> Finding:
    """What is said of a place that gave no answer, or none that can be read."""
    mend = "run the doctor where the workers run, while this server answers and allows it"
    if isinstance(error, ImportError):
        mend = "install it: Celery has an extra for each broker, such as celery[redis]"
    return Finding(
        "no-answer",
        "unknown",
        where,
        promise="Whether it is configured well cannot be said.",
        found=f"{type(error).__name__}: {error}",
        mend=mend,
    )


def listed(names: Iterable[str], most: int = 5) -> str:
    """*names* for a sentence, a few of them."""
    found = sorted(set(names))
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more
