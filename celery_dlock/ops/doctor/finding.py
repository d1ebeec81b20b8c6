"""What is examined, and what is found: a promise that does not hold, what was seen, what fixes it.

A case is an application and its settings, where its URLs lead, and by which clock. A clock is told
by an answer that was given between two looks at ours. Findings that several stores share are here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from celery_dlock.ops import event_text
from celery_dlock.settings import Settings
from celery_dlock.stores.base import servers_of

#: Seconds since 1970 on this host.
Clock = Callable[[], float]

#: Seconds that two clocks may differ by.
TOLERATED = 1.0


@dataclass(frozen=True, slots=True)
class Offset:
    """By how many seconds another clock is ahead of ours, at the least and at the most."""

    least: float
    most: float

    @property
    def certain(self) -> float:
        """Seconds that the clocks differ by for certain, below 0 when the other is behind."""
        if self.least > 0:
            return self.least
        return min(self.most, 0.0)

    def against(self, other: Offset) -> Offset:
        """By how much the clock of this one is ahead of that of *other*."""
        return Offset(self.least - other.most, self.most - other.least)

    @property
    def wrong(self) -> bool:
        return abs(self.certain) > TOLERATED

    def __str__(self) -> str:
        ahead = self.certain
        return f"{abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'}"


def measured(clock: Clock, ask: Callable[[], float], unit: float = 0.0) -> Offset:
    """How far the clock is ahead that *ask* tells, in steps of *unit* seconds."""
    sent = clock()
    told = ask()
    received = clock()
    return Offset(told - received, told + unit - sent)


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
    """*app* is a Celery application, all tasks of which are known. *clock* is this host's."""

    app: Any
    settings: Settings
    clock: Clock

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


def asked(where: str, findings: Iterable[Finding]) -> Iterator[Finding]:
    """*findings*, until whatever they ask fails to answer; that is a finding, too."""
    try:
        yield from findings
    except Exception as exc:  # a doctor who faints helps nobody
        yield _unanswered(where, exc)


def _unanswered(where: str, error: Exception) -> Finding:
    """What is said of a place that gave no answer, or none that can be read."""
    fix = "run the doctor where the workers run, while this server answers and allows it"
    if isinstance(error, ImportError):
        fix = "install it: Celery has an extra for each broker, such as celery[redis]"
    return Finding(
        "no-answer",
        "unknown",
        where,
        promise="It is not known whether it is configured well.",
        found=f"{type(error).__name__}: {error}",
        fix=fix,
    )


def listed(names: Iterable[str], most: int = 5) -> str:
    """*names* for a sentence, a few of them."""
    return event_text.listed(sorted(set(names)), most)


def on_time(offset: Offset, where: str, promise: str) -> Iterator[Finding]:
    """The clock of a server at *where* against that of this host; *promise* if it is wrong."""
    if offset.wrong:
        yield Finding(
            "clock-skew",
            "weak",
            where,
            promise=promise,
            found=f"its clock is {offset} this host's",
            fix="run NTP (chrony, systemd-timesyncd) on both hosts",
        )


def unavailable(
    store: Literal["zookeeper", "etcd"],
    members: Iterable[str],
    there: Collection[str],
    where: str,
) -> Iterator[Finding]:
    """Whether all of the *members* that the URL names are *there*."""
    missing = [member for member in members if member not in there]
    if missing:
        yield Finding(
            f"{store}-unavailable",
            "weak" if there else "broken",
            where,
            promise="If one more server is lost there may be no majority: then no lock is taken, "
            "released or renewed.",
            found=f"no answer from {', '.join(missing)}",
            fix="start them, or remove them from the cluster and from dlock_url",
        )


def quorum_size(
    store: Literal["zookeeper", "etcd", "redlock"], members: int, where: str
) -> Iterator[Finding]:
    """Whether *members* bear the loss of one, and as many losses as their number could."""
    if members == 1:
        yield Finding(
            f"{store}-single",
            "weak",
            where,
            promise="While it is unavailable no lock is taken, released or renewed. If its disk is "
            "lost all is lost: locks, parked messages, and the order of tokens.",
            found="one server",
            fix="run three on three hosts",
        )
    elif members % 2 == 0:
        yield Finding(
            f"{store}-even",
            "weak",
            where,
            promise=f"{members} servers tolerate the loss of no more servers than {members - 1} "
            "do.",
            found=f"{members} servers vote",
            fix="add one, or remove one",
        )
