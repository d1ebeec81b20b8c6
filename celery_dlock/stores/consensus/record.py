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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from celery_dlock.core.state import (
    WINDOW,
    Claim,
    Cooling,
    Dead,
    Grant,
    Holder,
    KeyState,
    OperatorHold,
    Waiting,
)
from celery_dlock.stores.change import REMEMBER_LOST
from celery_dlock.stores.consensus.rows import Row
from celery_dlock.stores.stored import as_json, dead_or_unreadable, restored, restored_each
from celery_dlock.stores.unreadable import NONSENSE, UnreadableKey, number

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
    listed as due. All else is the state's.
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
    cooling: tuple[Cooling, ...] = ()
    hold: OperatorHold | None = None

    @property
    def empty(self) -> bool:
        """Whether it says nothing, so that the key needs no version row."""
        slots = self.holders or self.grants or self.lost or self.cooling
        return not slots and self.hold is None and (self.parked, self.first, self.last) == (0, 0, 0)

    def pages(self) -> Iterator[int]:
        """The pages on which the queue may be, from its head on."""
        if (self.first, self.last) == (0, 0):
            return iter(())
        return _between(page_of(self.first), page_of(self.last), self.gaps)

    def encode(self) -> bytes:
        return as_json(self).encode()


def encode_alone(claim: Claim, token: int, since: int) -> bytes:
    """The record that says only that *claim* holds the key by its row, as it would be encoded.

    Each task whose key is free writes one, in a tenth of the time.
    """
    who = f'"task":{as_json(claim.task)},"nonce":{as_json(claim.nonce)},"mode":"{claim.mode}"'
    terms = f'"limit":{claim.limit},"slot":0,"token":{token},"since":{since},"expires":{claim.ttl}'
    names = f',"name":{as_json(claim.name)}' if claim.name else ""
    names += f',"where":{as_json(claim.where)}' if claim.where else ""
    return f'{{"holders":[{{{who},{terms}{names}}}],"leased":[{as_json(claim.owner)}]}}'.encode()


#: How the fields of a record are read that are not there as they are written.
_READ: Mapping[str, Callable[[Any], Any]] = {
    "holders": partial(restored_each, Holder),
    "leased": frozenset,
    "grants": partial(restored_each, Grant),
    "gaps": lambda gaps: tuple((number(start), number(end)) for start, end in gaps),
    "lost": partial(restored_each, LostRuns),
    "cooling": partial(restored_each, Cooling),
    "hold": partial(restored, OperatorHold),
}


_NAMES = frozenset(field.name for field in fields(Record))


def decode(value: bytes) -> Record:
    """Raises :exc:`UnreadableKey` for what :meth:`Record.encode` has not made."""
    try:
        row = json.loads(value)
        named = {name: row[name] for name in _NAMES & row.keys()}
        if not named:
            raise ValueError(row)
        return Record(**{name: _READ.get(name, number)(field) for name, field in named.items()})
    except NONSENSE as exc:
        raise UnreadableKey(f"not a version row: {exc!r}") from exc


def number_in(row: Row) -> int:
    """The number in *row*. Raises :exc:`UnreadableKey`."""
    try:
        return number(int(row.value))
    except NONSENSE as exc:
        raise UnreadableKey(f"not a number: {row.value[:100]!r}") from exc


def page_of(rank: int) -> int:
    """The page on which an entry with *rank* is; ranks may be negative."""
    return rank // WINDOW


def encode_page(entries: Iterable[Waiting]) -> bytes:
    return as_json(sorted(entries, key=lambda e: e.rank)).encode()


def decode_page(value: bytes) -> tuple[Waiting, ...]:
    """The entries of a page by rank. Raises :exc:`UnreadableKey`."""
    try:
        return restored_each(Waiting, json.loads(value))
    except NONSENSE as exc:
        raise UnreadableKey(f"not a page: {exc!r}") from exc


def encode_dead(dead: Dead, message: bytes) -> bytes:
    return as_json(dead).encode() + b"\n" + message


def decode_dead(value: bytes) -> tuple[Dead, bytes]:
    """Raises :exc:`UnreadableKey`."""
    head, _, message = value.partition(b"\n")
    try:
        return restored(Dead, json.loads(head)), message
    except NONSENSE as exc:
        raise UnreadableKey(f"not a dead message: {exc!r}") from exc


def listed_dead(task: str, value: bytes) -> tuple[Dead, bytes]:
    """The same for a list, which tells of a row that cannot be read that this is so."""
    head, _, message = value.partition(b"\n")
    return dead_or_unreadable(task, lambda: restored(Dead, json.loads(head))), message


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
        cooling=record.cooling,
        hold=record.hold,
    )
