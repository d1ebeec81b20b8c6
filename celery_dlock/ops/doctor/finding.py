"""A check is a row of a table: the facts that break a promise, what that means, what fixes it.

Facts are read first and judged then. A case is an application, its settings and this host's clock.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args

from celery_dlock.core import sentences
from celery_dlock.settings import Settings
from celery_dlock.stores.base import servers_of

#: Seconds since 1970 on this host.
Clock = Callable[[], float]


def place_of(url: str) -> str:
    """Host and path of *url*."""
    servers, parts = servers_of(url)
    return servers.rpartition("@")[2] + parts.path


def broker_url(conf: Any) -> str:
    """The broker's URL as it was given, the first of several; Celery's own where there is none."""
    given = conf.broker_read_url or "amqp://"
    first = given if isinstance(given, str) else given[0]
    return str(first).partition(";")[0]


@dataclass(frozen=True, slots=True)
class Case:
    """*app* is a Celery application, all tasks of which are known. *clock* is this host's.

    With *read_only* nothing is written, not even for a moment.
    """

    app: Any
    settings: Settings
    clock: Clock
    read_only: bool = False

    @property
    def conf(self) -> Any:
        """Celery's own configuration."""
        return self.app.conf


Severity = Literal["broken", "weak", "unknown"]

#: The worst first.
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


@dataclass(frozen=True, slots=True)
class Finding:
    """What the check named ``check`` found at ``where``.

    ``severity``: ``"broken"``: the promise does not hold, ``"weak"``: it does not hold in some
    faults, ``"unknown"``: it could not be seen whether it holds. ``promise`` says what that means
    for tasks, ``found`` what was seen, and ``fix`` is the setting or command that fixes it.
    ``waived`` is why that is accepted here, if it is. ``doctor --json`` has these names as keys.
    """

    check: str
    severity: Severity
    where: str
    promise: str
    found: str
    fix: str
    waived: str = ""


F = TypeVar("F", contravariant=True)


@dataclass(frozen=True, slots=True)
class Check(Generic[F]):
    """``broken_by`` returns what of the facts breaks the promise: the texts have a ``{}`` for it.

    Nothing is found where that is not true. The class has the severity, which is ``"broken"`` for
    facts of which ``broken`` is true.
    """

    broken_by: Callable[[F], object]
    found: str
    promise: str
    fix: str
    broken: Callable[[F], object] | None = None
    usual: ClassVar[Severity] = "broken"

    def finding(self, name: str, facts: F, place: str) -> Finding | None:
        """The finding about *facts*, which were read at *place*."""
        cause = self.broken_by(facts)
        if not cause:
            return None
        severity = "broken" if self.broken and self.broken(facts) else self.usual
        promise, found, fix = (t.format(cause) for t in (self.promise, self.found, self.fix))
        return Finding(name, severity, place, promise, found, fix)


class Broken(Check[F]):
    """A promise that does not hold."""


class Weak(Check[F]):
    """A promise that does not hold in some faults."""

    usual = "weak"


class Unknown(Check[F]):
    """A promise that may not hold."""

    usual = "unknown"


#: By their names; several of one name differ in their words.
Checks = Mapping[str, Check[F] | tuple[Check[F], ...]]


def judged(checks: Checks[F], facts: F, place: str) -> Iterator[Finding]:
    """What *checks* find in *facts*, which were read at *place*."""
    for name, row in checks.items():
        for check in row if isinstance(row, tuple) else (row,):
            if finding := check.finding(name, facts, place):
                yield finding


def asked(place: str, findings: Iterable[Finding]) -> Iterator[Finding]:
    """*findings*, until what they ask fails to answer; that is a finding, too."""
    try:
        yield from findings
    except Exception as exc:  # a doctor who faints helps nobody
        yield from judged(NO_ANSWER, exc, place)


def examined(checks: Checks[F], place: str, read: Callable[[], F]) -> Iterator[Finding]:
    """What *checks* find in what *read* returns; that nothing can be read is a finding, too."""

    def findings() -> Iterator[Finding]:
        yield from judged(checks, read(), place)

    return asked(place, findings())


def listed(names: Iterable[str], most: int = 5) -> str:
    """*names* for a sentence, a few of them; empty if there are none."""
    ordered = sorted(set(names))
    return sentences.listed(ordered, most) if ordered else ""


#: How the stores on Redis say it.
_REFUSES = re.compile(r" refuses ([A-Z|]+)")


def right_refused(error: str) -> str:
    """The rule of an ACL of Redis for the command that *error* says is refused, if it says so."""
    refused = _REFUSES.search(error)
    return f"+{refused[1].lower()}" if refused else ""


NO_ANSWER: Checks[Exception] = {
    "no-answer": Unknown(
        lambda error: (f"{type(error).__name__}: {error}", _hint(error)),
        "{0[0]}",
        promise="It is not known whether it is configured well.",
        fix="{0[1]}",
    )
}


def _hint(error: Exception) -> str:
    if isinstance(error, ImportError):
        return 'install it: Celery has an extra for each broker, pip install "celery[…]"'
    if right := right_refused(str(error)):
        return f"allow it for the user: ACL SETUSER … {right}"
    return "run the doctor where the workers run, while this server answers and allows it"
