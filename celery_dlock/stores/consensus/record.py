"""A key's rows as bytes: the version row that every operation reads, and the pages of its queue.

The version row holds who runs, whose turn has come and what was lost, all bounded; the queue
lies in pages of its own, each with the entries whose ranks fall into it, so that a long queue costs
an operation no more than a short one.

The version row also says which pages are known to be empty, so that nobody reads them in vain.
While a message at the head stays, that of a task which runs for hours, thousands may come and go
behind it. They leave a gap of pages, and the tasks that wait now are on the far side of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter

from celery_dlock.core.state import WINDOW, Claim, Dead, Grant, Holder, KeyState, Waiting
from celery_dlock.stores.change import REMEMBER_LOST
from celery_dlock.stores.consensus.rows import Row
from celery_dlock.stores.unreadable import (
    NONSENSE,
    UnreadableKey,
    dead_or_unreadable,
    number,
    restored,
)

#: Runs of pages, each from its first to before its end, in order and apart from each other.
Gaps = tuple[tuple[int, int], ...]

#: Behind so many there are more entries than an operation reads.
MOST_GAPS = 64

#: Of so many tasks of one key the lost runs are remembered, the latest.
MOST_LOST = 100


@dataclass(frozen=True, slots=True)
class LostRuns:
    """How many runs of a task were lost, and until when that is remembered."""

    task: str
    count: int
    until: int


@dataclass(frozen=True, slots=True)
class Record:
    """What is in a key's version row.

    The holders named in ``leased`` hold for as long as they have a row of their own, and their
    ``expires`` says for how long after it was seen; that of others is an instant.
    ``first`` and ``last`` are ranks between which all entries of the queue are (0 and 0: there
    are none), and not on the pages in ``gaps``; ``due`` is the instant under which the key is
    listed as due, and ``paused`` is the state's.
    """

    holders: tuple[Holder, ...] = ()
    leased: frozenset[str] = frozenset()
    grants: tuple[Grant, ...] = ()
    parked: int = 0
    first: int = 0
    last: int = 0
    gaps: Gaps = ()
    lost: tuple[LostRuns, ...] = ()
    due: int | None = None
    paused: int = 0

    @property
    def empty(self) -> bool:
        """Whether it says nothing, so that the key needs no version row."""
        known = self.holders or self.grants or self.lost
        return not known and (self.parked, self.first, self.last) == (0, 0, 0)

    def pages(self) -> Iterator[int]:
        """The pages on which the queue may be, from its head on."""
        if (self.first, self.last) == (0, 0):
            return iter(())
        return _between(page_of(self.first), page_of(self.last), self.gaps)

    def encode(self) -> bytes:
        rows = {
            "holders": list(map(_of_holder, self.holders)),
            "leased": sorted(self.leased),
            "grants": list(map(_of_grant, self.grants)),
            "lost": list(map(_of_lost, self.lost)),
            "queue": [self.parked, self.first, self.last],
            "gaps": self.gaps,
            "due": self.due,
            "paused": self.paused,
        }
        return _json(rows).encode()


def encode_alone(claim: Claim, token: int, since: int) -> bytes:
    """The record that says only that *claim* holds the key by its row, as it would be encoded."""
    holder = f'[{_json(claim.task)},{_json(claim.nonce)},"{claim.mode}",{claim.limit},0,{token},'
    ends = f"{since},{claim.ttl},"
    who = f"{_json(claim.name)},{_json(claim.where)},0,null]"
    rest = '"grants":[],"lost":[],"queue":[0,0,0],"gaps":[],"due":null,"paused":0'
    leased = _json(claim.owner)
    return f'{{"holders":[{holder}{ends}{who}],"leased":[{leased}],{rest}}}'.encode()


# A row is a list of fields, by their order: there are many, and their names would be most of it.
_of_holder = attrgetter(*(field.name for field in fields(Holder)))
_of_grant = attrgetter(*(field.name for field in fields(Grant)))
_of_lost = attrgetter(*(field.name for field in fields(LostRuns)))
_of_waiting = attrgetter(*(field.name for field in fields(Waiting)))
_of_dead = attrgetter(*(field.name for field in fields(Dead)))
_json = json.JSONEncoder(separators=(",", ":")).encode


def decode(value: bytes) -> Record:
    """Raises :exc:`UnreadableKey` for what :meth:`Record.encode` has not made."""
    try:
        rows = json.loads(value)
        parked, first, last = map(number, rows["queue"])
        return Record(
            tuple(restored(Holder, *row) for row in rows["holders"]),
            frozenset(rows["leased"]),
            tuple(restored(Grant, *row) for row in rows["grants"]),
            parked,
            first,
            last,
            tuple((number(start), number(end)) for start, end in rows["gaps"]),
            tuple(restored(LostRuns, *row) for row in rows["lost"]),
            None if rows["due"] is None else number(rows["due"]),
            number(rows["paused"]),
        )
    except NONSENSE as exc:
        raise UnreadableKey(f"not a version row: {exc!r}") from exc


def number_in(row: Row) -> int:
    """What a row says that is a number. Raises :exc:`UnreadableKey`."""
    try:
        return number(int(row.value))
    except NONSENSE as exc:
        raise UnreadableKey(f"not a number: {row.value[:100]!r}") from exc


def page_of(rank: int) -> int:
    """The page on which an entry with *rank* is; ranks may be negative."""
    return rank // WINDOW


def encode_page(entries: Iterable[Waiting]) -> bytes:
    return _json([_of_waiting(e) for e in sorted(entries, key=lambda e: e.rank)]).encode()


def decode_page(value: bytes) -> tuple[Waiting, ...]:
    """The entries of a page by rank. Raises :exc:`UnreadableKey`."""
    try:
        return tuple(restored(Waiting, *row) for row in json.loads(value))
    except NONSENSE as exc:
        raise UnreadableKey(f"not a page: {exc!r}") from exc


def encode_dead(dead: Dead, message: bytes) -> bytes:
    return _json(_of_dead(dead)).encode() + b"\n" + message


def decode_dead(value: bytes) -> tuple[Dead, bytes]:
    """Raises :exc:`UnreadableKey`."""
    head, _, message = value.partition(b"\n")
    try:
        return restored(Dead, *json.loads(head)), message
    except NONSENSE as exc:
        raise UnreadableKey(f"not a dead message: {exc!r}") from exc


def listed_dead(task: str, value: bytes) -> tuple[Dead, bytes]:
    """The same for a list, which tells of a row that cannot be read that this is so."""
    head, _, message = value.partition(b"\n")
    return dead_or_unreadable(task, lambda: restored(Dead, *json.loads(head))), message


def _between(first: int, last: int, gaps: Gaps) -> Iterator[int]:
    """The pages from *first* to *last*, without *gaps*."""
    at = first
    for start, end in gaps:
        yield from range(at, min(start, last + 1))
        at = max(at, end)
    yield from range(at, last + 1)


def changed_gaps(gaps: Gaps, emptied: Iterable[int], filled: Iterable[int], first: int) -> Gaps:
    """*gaps* from the page *first* on, after some pages were emptied and others filled."""
    runs = [(max(start, first), end) for start, end in gaps if end > first]
    runs += [(page, page + 1) for page in emptied if page >= first]
    for page in filled:
        runs = [part for run in runs for part in _without(run, page)]
    joined: list[tuple[int, int]] = []
    for start, end in sorted(runs):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return tuple(joined[:MOST_GAPS])


def _without(run: tuple[int, int], page: int) -> list[tuple[int, int]]:
    start, end = run
    if not start <= page < end:
        return [run]
    return [part for part in ((start, page), (page + 1, end)) if part[0] < part[1]]


def remember_lost(
    lost: tuple[LostRuns, ...], counts: Mapping[str, int], now: int
) -> tuple[LostRuns, ...]:
    """*lost* with the new *counts*, 0 to forget; what is over at *now* is left out."""
    if not lost and not counts:
        return ()
    stays = [entry for entry in lost if entry.task not in counts and entry.until > now]
    until = now + REMEMBER_LOST
    stays += [LostRuns(task, count, until) for task, count in sorted(counts.items()) if count]
    return tuple(stays[-MOST_LOST:])


def as_state(
    record: Record, holders: tuple[Holder, ...], waiting: Sequence[Waiting], now: int
) -> KeyState:
    """The part of a key's state that its rows say, with *holders* as they are at *now*."""
    return KeyState(
        holders,
        record.grants,
        tuple(waiting),
        record.parked,
        first=waiting[0].rank if waiting else 0,
        last=record.last,
        lost=tuple((entry.task, entry.count) for entry in record.lost if entry.until > now),
        paused=record.paused,
    )
