"""Checks that several stores share: of clocks, and of the members of a cluster.

A clock is known by an answer that it gave between two looks at ours.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from celery_dlock.ops.doctor.finding import Check, Checks, Clock, Weak

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

    @property
    def offset(self) -> Offset:
        return self

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
    reply = ask()
    received = clock()
    return Offset(reply - received, reply + unit - sent)


class HasOffset(Protocol):
    @property
    def offset(self) -> Offset: ...


def clock_skew(promise: str) -> Checks[HasOffset]:
    """The clock of a server against that of this host; *promise* is what a wrong one means."""
    return {
        "clock-skew": Weak(
            lambda facts: facts.offset.wrong and facts.offset,
            "its clock is {} this host's",
            promise=promise,
            fix="run NTP (chrony, systemd-timesyncd) on both hosts",
        )
    }


@dataclass(frozen=True, slots=True)
class Members:
    """The servers that a URL names, those that answer, and how many vote, -1 if not known."""

    named: Sequence[str] = ()
    answering: Collection[str] = ()
    vote: int = -1

    @property
    def missing(self) -> str:
        return ", ".join(member for member in self.named if member not in self.answering)


def cluster(store: Literal["zookeeper", "etcd", "redlock"]) -> Mapping[str, Check[Members]]:
    """Whether all members answer, and bear as many losses as their number could."""
    return {
        f"{store}-unavailable": Weak(
            lambda members: members.missing,
            "no answer from {}",
            promise="If one more server is lost there may be no majority: then no lock is taken, "
            "released or renewed.",
            fix="start them, or remove them from the cluster and from dlock_url",
            broken=lambda members: not members.answering,
        ),
        f"{store}-single": Weak(
            lambda members: members.vote == 1,
            "one server",
            promise="While it is unavailable no lock is taken, released or renewed. If its disk is "
            "lost all is lost: locks, parked messages, and the order of tokens.",
            fix="run three on three hosts",
        ),
        f"{store}-even": Weak(
            lambda members: members.vote % 2 == 0 and (members.vote, members.vote - 1),
            "{0[0]} servers vote",
            promise="{0[0]} servers tolerate the loss of no more servers than {0[1]} do.",
            fix="add one, or remove one",
        ),
    }
