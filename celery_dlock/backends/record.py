"""A key's rows as bytes: the guard that every operation reads, and the pages of its queue.

The guard holds who runs, whose turn was called and what was lost, all bounded; the queue lies in
pages of its own, each with the entries whose ranks fall into it, so that a long queue costs an
operation no more than a short one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from celery_dlock.backends.change import REMEMBER_LOST
from celery_dlock.backends.gaps import Gaps, between
from celery_dlock.core.state import (
    WINDOW,
    Cause,
    Claim,
    Dead,
    Ending,
    Grant,
    Holder,
    KeyState,
    Mode,
    Waiting,
)
from celery_dlock.errors import BackendUnavailable

#: Of so many tasks of one key the lost runs are remembered, the latest.
MOST_LOST = 100


class UnreadableKey(BackendUnavailable):
    """The rows of one key make no sense; those of others may."""


@dataclass(frozen=True, slots=True)
class Lost:
    """How many runs of a task were lost, and until when that is remembered."""

    task: str
    count: int
    until: int


@dataclass(frozen=True, slots=True)
class Record:
    """What is in a key's guard.

    The holders named in ``leased`` hold for as long as they have a row of their own, and their
    ``expires`` and ``frees`` say for how long after it was seen; those of others are instants.
    ``first`` and ``last`` are ranks between which all entries of the queue are (0 and 0: there
    are none), and not on the pages in ``gaps``; ``due`` is the instant under which the key is
    listed as due.
    """

    holders: tuple[Holder, ...] = ()
    leased: frozenset[str] = frozenset()
    grants: tuple[Grant, ...] = ()
    parked: int = 0
    first: int = 0
    last: int = 0
    gaps: Gaps = ()
    lost: tuple[Lost, ...] = ()
    due: int | None = None

    @property
    def empty(self) -> bool:
        """Whether it says nothing, so that the key needs no guard."""
        known = self.holders or self.grants or self.lost
        return not known and (self.parked, self.first, self.last) == (0, 0, 0)

    def pages(self) -> Iterator[int]:
        """The pages on which the queue may be, from its head on."""
        if (self.first, self.last) == (0, 0):
            return iter(())
        return between(page_of(self.first), page_of(self.last), self.gaps)

    def encode(self) -> bytes:
        rows = {
            "holders": list(map(_of_holder, self.holders)),
            "leased": sorted(self.leased),
            "grants": list(map(_of_grant, self.grants)),
            "lost": list(map(_of_lost, self.lost)),
            "queue": [self.parked, self.first, self.last],
            "gaps": self.gaps,
            "due": self.due,
        }
        return _json(rows).encode()


def encode_alone(claim: Claim, token: int, since: int) -> bytes:
    """The record that says only that *claim* holds the key by its row, as it would be encoded."""
    holder = f'[{_json(claim.task)},{_json(claim.nonce)},"{claim.mode}",{claim.limit},0,{token},'
    ends = f"{since},{claim.ttl},{claim.ttl + claim.lock_delay}]"
    rest = '"grants":[],"lost":[],"queue":[0,0,0],"gaps":[],"due":null'
    leased = _json(claim.owner)
    return f'{{"holders":[{holder}{ends}],"leased":[{leased}],{rest}}}'.encode()


# A row is a list of fields, by their order: there are many, and their names would be most of it.
_of_holder = attrgetter(*(field.name for field in fields(Holder)))
_of_grant = attrgetter(*(field.name for field in fields(Grant)))
_of_lost = attrgetter(*(field.name for field in fields(Lost)))
_of_waiting = attrgetter(*(field.name for field in fields(Waiting)))
_of_dead = attrgetter(*(field.name for field in fields(Dead)))
_json = json.JSONEncoder(separators=(",", ":")).encode


def decode(value: bytes) -> Record:
    """Raises :exc:`UnreadableKey` for what :meth:`Record.encode` has not made."""
    try:
        rows = json.loads(value)
        parked, first, last = rows["queue"]
        return Record(
            tuple(_holder(*row) for row in rows["holders"]),
            frozenset(rows["leased"]),
            tuple(_grant(*row) for row in rows["grants"]),
            parked,
            first,
            last,
            tuple((start, end) for start, end in rows["gaps"]),
            tuple(Lost(*row) for row in rows["lost"]),
            rows["due"],
        )
    except (TypeError, KeyError, ValueError) as exc:
        raise UnreadableKey(f"not a guard: {exc!r}") from exc


def _holder(task: str, nonce: str, mode: str, *numbers: int) -> Holder:
    return Holder(task, nonce, Mode(mode), *numbers)


def _grant(
    task: str, mode: str, limit: int, parked: bool, calls: int, due: int, ending: Any, taker: str
) -> Grant:
    ending = None if ending is None else Ending(ending)
    return Grant(task, Mode(mode), limit, parked, calls, due, ending, taker)


def page_of(rank: int) -> int:
    """The page on which an entry with *rank* is; ranks may be negative."""
    return rank // WINDOW


def encode_page(entries: Iterable[Waiting]) -> bytes:
    return _json([_of_waiting(e) for e in sorted(entries, key=lambda e: e.rank)]).encode()


def decode_page(value: bytes) -> tuple[Waiting, ...]:
    """The entries of a page by rank. Raises :exc:`UnreadableKey`."""
    try:
        return tuple(Waiting(row[0], Mode(row[1]), *row[2:]) for row in json.loads(value))
    except (TypeError, ValueError, LookupError) as exc:
        raise UnreadableKey(f"not a page: {exc!r}") from exc


def encode_dead(dead: Dead, message: bytes) -> bytes:
    return _json(_of_dead(dead)).encode() + b"\n" + message


def decode_dead(value: bytes) -> tuple[Dead, bytes]:
    """Raises :exc:`UnreadableKey`."""
    head, _, message = value.partition(b"\n")
    try:
        task, mode, limit, cause, at = json.loads(head)
        dead = Dead(task, Mode(mode), limit, Cause(cause), at)
    except (TypeError, ValueError) as exc:
        raise UnreadableKey(f"not a dead message: {exc!r}") from exc
    return dead, message


def remember_lost(lost: tuple[Lost, ...], counts: Mapping[str, int], now: int) -> tuple[Lost, ...]:
    """*lost* with the new *counts*, 0 to forget; what is over at *now* is left out."""
    if not lost and not counts:
        return ()
    stays = [entry for entry in lost if entry.task not in counts and entry.until > now]
    until = now + REMEMBER_LOST
    stays += [Lost(task, count, until) for task, count in sorted(counts.items()) if count]
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
    )
