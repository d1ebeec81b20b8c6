"""Was every tick run, once, or missed in a message? Asked of what was noted, at the end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from enum import StrEnum

from tests.beat.due import SAME_SUN, due_instants
from tests.beat.evidence import Evidence, Published, Ran, Term
from tests.services.beat_entries import Entry
from tests.services.campaign import Violation


class Check(StrEnum):
    """What is promised."""

    MISSING = "every tick is run, or a beat has said that it was missed"
    TWICE = "a locked task runs once a tick"
    UNTOLD = "a plain task runs twice only when it was told"
    OFF = "nothing runs that was not due"
    EARLY = "nothing is sent before it is due"
    IDENTITY = "a tick has one task id, and no other tick has it"
    SENDERS = "one sends at a time"


def violations(evidence: Evidence) -> list[Violation]:
    """Every broken promise."""
    found = [
        *(each for entry in evidence.entries for each in _of_entry(evidence, entry)),
        *(Violation(Check.EARLY, what) for what in _early(evidence)),
        *(Violation(Check.IDENTITY, what) for what in _identities(evidence)),
        *(Violation(Check.SENDERS, what) for what in _senders(evidence)),
    ]
    return sorted(found, key=lambda each: list(Check).index(Check(each.check)))


def missing(evidence: Evidence) -> Iterator[tuple[str, datetime]]:
    """The ticks that were neither run nor said to be missed: the entry, and when it was due."""
    for entry in evidence.entries:
        runs = _runs(evidence, entry)
        first = min([evidence.since, *(_just_before(entry, due) for due in runs)])
        for due in due_instants(entry, first, evidence.until):
            if _as_run(entry, due, runs) is None and not _missed(evidence, entry, due):
                yield entry.name, due


def _missed(evidence: Evidence, entry: Entry, due: datetime) -> bool:
    slack = SAME_SUN if entry.solar else timedelta(0)
    return any(
        first - slack <= due < until - slack
        for name, first, until in evidence.missed
        if name == entry.name
    )


def _of_entry(evidence: Evidence, entry: Entry) -> Iterator[Violation]:
    runs = _runs(evidence, entry)
    if runs:
        ahead = SAME_SUN if entry.solar else timedelta(0)
        due = due_instants(entry, _just_before(entry, min(runs)), max(runs) + ahead)
        for each in runs:
            if not any(_same(entry, each, one) for one in due):
                yield Violation(Check.OFF, f"{entry.name} at {each}")
    for name, instant in missing(evidence):
        if name == entry.name:
            yield Violation(Check.MISSING, f"{name} at {instant}")
    merged = _merged(entry, runs)
    told = _merged(entry, Counter(due for name, due in evidence.repeated if name == entry.name))
    for instant, count in merged.items():
        if entry.task == "locked" and count > 1:
            yield Violation(Check.TWICE, f"{entry.name} at {instant}: {count} times")
        explained = sum(n for due, n in told.items() if _same(entry, due, instant))
        if entry.task == "plain" and count > 1 + explained:
            what = f"{entry.name} at {instant}: {count} times, told {explained}"
            yield Violation(Check.UNTOLD, what)


def _runs(evidence: Evidence, entry: Entry) -> Counter[datetime]:
    return Counter(each.due for each in evidence.ran if each.entry == entry.name)


def _merged(entry: Entry, runs: Counter[datetime]) -> Counter[datetime]:
    """*runs*, those of one sunset together, whichever way ephem came to it."""
    merged: Counter[datetime] = Counter()
    for due in sorted(runs):
        merged[_as_run(entry, due, merged) or due] += runs[due]
    return merged


def _as_run(entry: Entry, due: datetime, runs: Counter[datetime]) -> datetime | None:
    return next((each for each in runs if _same(entry, each, due)), None)


def _just_before(entry: Entry, due: datetime) -> datetime:
    return due - (2 * SAME_SUN if entry.solar else timedelta.resolution)


def _same(entry: Entry, one: datetime, other: datetime) -> bool:
    return abs(one - other) < SAME_SUN if entry.solar else one == other


def _early(evidence: Evidence) -> Iterator[str]:
    for each in evidence.published:
        shown = [back.shown for back in evidence.put_back if back.at < each.at]
        if each.due > max([each.now, *shown]):
            yield f"{each.entry} at {each.due}, by {each.beat} at {each.now}"


def _identities(evidence: Evidence) -> Iterator[str]:
    ids: dict[tuple[str, datetime], set[str]] = defaultdict(set)
    ticks: dict[str, set[tuple[str, datetime]]] = defaultdict(set)
    seen: list[Published | Ran] = [*evidence.published, *evidence.ran]
    for each in seen:
        ids[each.entry, each.due].add(each.id)
        ticks[each.id].add((each.entry, each.due))
    yield from (f"{tick} has {found}" for tick, found in ids.items() if len(found) > 1)
    yield from (f"{task} is {found}" for task, found in ticks.items() if len(found) > 1)


def _senders(evidence: Evidence) -> Iterator[str]:
    """Whoever sends leads, and nobody has begun to lead since; but for one that stood still.

    That one may have had one message in its hand as it stopped.
    """
    before: dict[int, float] = {}
    for each in evidence.published:
        last = before.get(each.pid, 0.0)
        before[each.pid] = each.at
        mine = _term(evidence, each)
        if mine is None:
            yield f"{each.beat} sent {each.entry} at {each.at:.3f} and has never led"
            continue
        begun = [term.began for term in evidence.terms if mine.began < term.began < each.at]
        over = min([mine.ended, *begun])
        if over < each.at and not (last <= over and _stood(evidence, each, last)):
            what = f"{each.beat} sent {each.entry} at {each.at:.3f}"
            yield f"{what}, and did not lead any more from {over:.3f} on"


def _term(evidence: Evidence, each: Published) -> Term | None:
    """The last that its beat had begun."""
    own = [term for term in evidence.terms if term.pid == each.pid and term.began <= each.at]
    return max(own, key=lambda term: term.began, default=None)


def _stood(evidence: Evidence, each: Published, last: float) -> bool:
    """Whether its beat stood still between its message before and this one."""
    return any(
        stood.beat == each.beat and stood.begin < each.at and stood.end > last
        for stood in evidence.stood
    )
