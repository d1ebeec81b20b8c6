"""What beats and their worker have noted, read from their journal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from tests.services.beat_entries import Entry
from tests.services.lab import Journal


@dataclass(frozen=True, slots=True)
class Ran:
    """A body that ran: the tick's entry and due instant, its task id and its fencing token."""

    entry: str
    due: datetime
    id: str
    token: int | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """A message that *beat* was about to send at the monotonic instant *at*, by its own *now*."""

    beat: str
    pid: int
    entry: str
    due: datetime
    id: str
    at: float
    now: datetime


@dataclass(frozen=True, slots=True)
class Term:
    """The time in which *beat* led, on the monotonic clock; a killed one never ends it."""

    beat: str
    pid: int
    began: float
    ended: float = math.inf

    @property
    def leads(self) -> bool:
        return self.ended == math.inf


@dataclass(frozen=True, slots=True)
class Stood:
    """A time in which *beat* did nothing at all, paused or for want of a processor."""

    beat: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class PutBack:
    """The clock was put back at the monotonic instant *at*; before, it had shown *shown*."""

    at: float
    shown: datetime


@dataclass(frozen=True, slots=True)
class Evidence:
    """All there is to judge by.

    Whatever falls due between *since* and *until* is to be sent. *repeated* are the ticks of which
    a beat said that it sends them again, and *missed* the entries with the first tick that a beat
    said was missed, and the first after it that was not.
    """

    entries: Sequence[Entry]
    since: datetime
    until: datetime
    ran: Sequence[Ran]
    published: Sequence[Published] = ()
    repeated: Sequence[tuple[str, datetime]] = ()
    missed: Sequence[tuple[str, datetime, datetime]] = ()
    terms: Sequence[Term] = ()
    stood: Sequence[Stood] = ()
    put_back: Sequence[PutBack] = ()


def read(journal: Journal, entries: Sequence[Entry], since: datetime, until: datetime) -> Evidence:
    """What *journal* says."""
    ran = [
        Ran(each["entry"], instant(each["due"]), each["id"], each["token"])
        for each in journal.read("ran")
    ]
    published = [
        Published(
            *(each["beat"], each["pid"], each["entry"], instant(each["due"]), each["id"]),
            *(each["mono"], instant(each["now"])),
        )
        for each in journal.read("publishing")
    ]
    stood = [
        Stood(each["beat"], each["since"], each["mono"]) for each in journal.read("stood still")
    ]
    put_back = [PutBack(each["mono"], instant(each["now"])) for each in journal.read("put back")]
    told = (repeats(journal), gaps(journal), terms(journal))
    return Evidence(entries, since, until, ran, published, *told, stood, put_back)


def repeats(journal: Journal) -> list[tuple[str, datetime]]:
    """The ticks that were told to be sent again."""
    told = (each["told"] for each in journal.read("event", kind="TickRepeated"))
    return [(each["subject"]["label"], instant(each["due"])) for each in told]


def gaps(journal: Journal) -> list[tuple[str, datetime, datetime]]:
    """The ticks that were said to be missed."""
    events = (each["told"] for each in journal.read("event", kind="TicksMissed"))
    return [
        (event["subject"]["label"], instant(event["first"]), instant(event["until"]))
        for event in events
    ]


def terms(journal: Journal) -> list[Term]:
    """Who led, in the order in which they began."""
    found: list[Term] = []
    for each in journal.read("event"):
        if each["told"]["subject"]["task_name"] != "celery beat":
            continue
        if each["kind"] == "Acquired":
            found.append(Term(each["beat"], each["pid"], each["mono"]))
        elif each["kind"] in ("Lost", "Released"):
            found = [_ended(term, each) for term in found]
    return found


def _ended(term: Term, event: Mapping[str, Any]) -> Term:
    its = term.pid == event["pid"] and term.leads
    return replace(term, ended=event["mono"]) if its else term


def instant(written: str) -> datetime:
    return datetime.fromisoformat(written)
