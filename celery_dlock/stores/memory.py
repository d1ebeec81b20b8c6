"""The store inside one process: the machine under a mutex.

What it does not give: anything to a second process. It is for tests, for eager mode and for the
pools that run in one process (threads, solo, gevent, eventlet); under prefork it is refused.
"""

from __future__ import annotations

import heapq
import threading
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import ClassVar, Self, TypeVar

from celery_dlock.core import turns
from celery_dlock.core.lease import SECOND
from celery_dlock.core.operations import Enter, OnDeadLetter, Operation, Renew
from celery_dlock.core.state import WINDOW, Claim, KeyState, RenewVerdict, Step, Waiting, task_id_of
from celery_dlock.errors import ConfigurationError
from celery_dlock.stores.base import (
    BackendOptions,
    DeadMessage,
    Guarantee,
    KeyPage,
    NoteStore,
    Reply,
    Swept,
    Trait,
    Wake,
    by_age,
    first_of,
    live,
    page,
    wall_clock,
)
from celery_dlock.stores.change import REMEMBER_LOST, difference

V = TypeVar("V")


@dataclass(slots=True)
class _Past:
    """What is remembered of a task that does not hold its key: that it is done, or lost runs."""

    done_until: int = 0
    lost: int = 0
    lost_until: int = 0


@dataclass(slots=True)
class _Key:
    """One key: its state, the parked messages by task, and what is remembered of tasks."""

    state: KeyState = field(default_factory=KeyState)
    messages: dict[str, bytes] = field(default_factory=dict[str, bytes])
    past: dict[str, _Past] = field(default_factory=dict[str, _Past])


@dataclass(slots=True)
class _Notes:
    """The notes beside one key, and the largest token that has written there."""

    bar: int = 0
    texts: dict[str, bytes] = field(default_factory=dict[str, bytes])


class MemoryBackend(NoteStore):
    """All keys of one process in one dictionary; a key that says nothing any more is not in it."""

    traits: ClassVar[frozenset[Trait]] = frozenset(
        {Trait.LEASE_PER_TASK, Trait.MONOTONE_FENCING, Trait.STRICT_FENCING}
    )
    guarantee: ClassVar[Guarantee] = Guarantee.STRICT
    largest_message: ClassVar[int] = 2**30

    def __init__(self, options: BackendOptions) -> None:
        self._now = options.clock or wall_clock
        self._mutex = threading.Lock()
        self._keys: dict[str, _Key] = {}
        self._forget: list[tuple[int, str, str]] = []  # a heap: until when, key, task
        self._dead: dict[tuple[str, str], DeadMessage] = {}
        self._notes: dict[str, _Notes] = {}
        self._swapped: dict[str, tuple[bytes, int]] = {}  # a value, and until when it is stored
        self._tidy_above = 100  # so many of them, and those that are over go
        self._token = 0

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> Self:
        if url != "memory://":
            raise ConfigurationError("memory:// takes nothing after it")
        return cls(options)

    def apply(self, operation: Operation[V]) -> Reply[V]:
        with self._mutex:
            return self._apply(operation)

    def _apply(self, operation: Operation[V]) -> Reply[V]:
        now = self._now()
        before = self._load(operation, now)
        self._token += isinstance(operation, Enter)
        return self._commit(operation, before, operation.apply(before, now, self._token), now)

    def renew(self, claims: Sequence[Claim]) -> list[RenewVerdict]:
        with self._mutex:
            return [self._apply(Renew(claim)).verdict for claim in claims]

    def now(self) -> int:
        return self._now()

    def sweep(self, limit: int = 100) -> Swept:
        overdue = [key for at, key in self._dues() if at <= self._now()]
        wakes = [wake for key in overdue[:limit] for wake in self.reap(key).wakes]
        later = self._dues()
        next_in = max(0, later[0][0] - self._now()) / SECOND if later else None
        return Swept(tuple(wakes), next_in)

    def _dues(self) -> list[tuple[int, str]]:
        with self._mutex:
            dues = ((turns.due(row.state), key) for key, row in self._keys.items())
            return sorted((at, key) for at, key in dues if at is not None)

    def parked(self, task_ids: Collection[str]) -> list[tuple[str, str]]:
        with self._mutex:
            return [
                (key, task)
                for key, row in self._keys.items()
                for task in row.messages
                if task_id_of(task) in task_ids
            ]

    def message(self, key: str, task: str) -> bytes | None:
        with self._mutex:
            row = self._keys.get(key)
            return row.messages.get(task) if row else None

    def dead(self, limit: int = 100) -> list[DeadMessage]:
        with self._mutex:
            return sorted(self._dead.values(), key=by_age)[:limit]

    def dead_of(self, task_ids: Collection[str]) -> list[DeadMessage]:
        with self._mutex:
            letters = [
                letter for letter in self._dead.values() if task_id_of(letter.dead.task) in task_ids
            ]
        return sorted(letters, key=by_age)

    def count_dead(self) -> int:
        with self._mutex:
            return len(self._dead)

    def note(self, key: str, token: int, notes: Mapping[str, bytes | None]) -> bool:
        with self._mutex:
            beside = self._notes.setdefault(key, _Notes())
            if token < beside.bar:
                return False
            beside.bar = token
            for name, text in notes.items():
                if text is None:
                    beside.texts.pop(name, None)
                else:
                    beside.texts[name] = text
            return True

    def notes(self, key: str) -> dict[str, bytes]:
        with self._mutex:
            return dict(self._notes.get(key, _Notes()).texts)

    def swap(self, name: str, was: bytes | None, becomes: bytes | None, stays: int) -> bytes | None:
        with self._mutex:
            now = self._now()
            if len(self._swapped) > self._tidy_above:
                self._swapped = {at: put for at, put in self._swapped.items() if put[1] > now}
                self._tidy_above = 2 * len(self._swapped) + 100
            put, ends = self._swapped.get(name, (None, 0))
            current = put if ends > now else None
            if current != was:
                return current
            if becomes is None:
                self._swapped.pop(name, None)
            else:
                self._swapped[name] = becomes, now + stays
            return becomes

    def swapped(self, limit: int = 100) -> list[tuple[str, bytes]]:
        with self._mutex:
            pairs = [(n, put) for n, (put, ends) in self._swapped.items() if ends > self._now()]
            return pairs[:limit]

    def peek(self, key: str, limit: int | None = None) -> KeyState:
        with self._mutex:
            state = self._keys.get(key, _Key()).state
            return state if limit is None else replace(state, waiting=state.waiting[:limit])

    def position(self, key: str, task: str) -> tuple[Waiting, int] | None:
        with self._mutex:
            waiting = self._keys.get(key, _Key()).state.waiting
            return next(((w, n) for n, w in enumerate(waiting) if w.task == task), None)

    def keys(self, cursor: str = "", limit: int = 100, *, waiting: bool = False) -> KeyPage:
        first = first_of(cursor)
        with self._mutex:
            rows = dict(self._keys)
        names = sorted(rows)
        later = islice(names, bisect_left(names, first), None)
        in_use = (
            key for key in later if rows[key].messages or (not waiting and _in_use(rows[key].state))
        )
        return page(list(islice(in_use, limit + 1)), limit)

    def look(self, keys: Sequence[str]) -> list[KeyState]:
        with self._mutex:
            now = self._now()
            return [_head(self._keys.get(key, _Key()).state, now) for key in keys]

    def close(self) -> None:
        """Nothing to give back: the locks live as long as the process."""

    def _load(self, operation: Operation[object], now: int) -> KeyState:
        self._forget_past(now)
        claim = operation.claim
        row = self._keys.get(claim.key, _Key())
        past = row.past.get(claim.task, _Past())
        tasks = {claim.task, *(holder.task for holder in row.state.holders)}
        lost = ((task, row.past[task].lost) for task in sorted(tasks & row.past.keys()))
        letter = (
            self._dead.get((claim.key, claim.task)) if isinstance(operation, OnDeadLetter) else None
        )
        return replace(
            row.state,
            done=frozenset({claim.task} if past.done_until > now else ()),
            lost=tuple((task, count) for task, count in lost if count),
            dead=() if letter is None else (letter.dead,),
        )

    def _commit(
        self, operation: Operation[object], before: KeyState, step: Step[V], now: int
    ) -> Reply[V]:
        claim, message = operation.claim, operation.message
        change = difference(before, step)
        row = self._keys.setdefault(claim.key, _Key())
        row.state = replace(step.state, done=frozenset(), lost=(), dead=())
        for dead in before.dead:
            message = self._dead.pop((claim.key, dead.task)).message
        for task in change.parked:
            row.messages[task] = message or b""
        wakes = tuple(
            Wake(claim.key, turn.task, row.messages[turn.task], turn.ending, turn.woken)
            for turn in step.wakes
        )
        for dead in change.dead:
            kept = message or row.messages.get(dead.task, b"")
            self._dead[claim.key, dead.task] = DeadMessage(claim.key, dead, kept)
        for task in change.unparked:
            del row.messages[task]
        for task in change.undone & row.past.keys():
            row.past[task].done_until = 0
        for task in change.done:
            row.past.setdefault(task, _Past()).done_until = now + claim.done_ttl
            heapq.heappush(self._forget, (now + claim.done_ttl, claim.key, task))
        for task, count in change.lost.items():
            past = row.past.setdefault(task, _Past())
            past.lost, past.lost_until = count, now + REMEMBER_LOST if count else 0
            heapq.heappush(self._forget, (past.lost_until, claim.key, task))
        self._tidy(claim.key)
        return Reply(step.verdict, wakes)

    def _forget_past(self, now: int) -> None:
        while self._forget and self._forget[0][0] <= now:
            _, key, task = heapq.heappop(self._forget)
            row = self._keys.get(key)
            past = row.past.get(task) if row else None
            if row and past and max(past.done_until, past.lost_until) <= now:
                del row.past[task]
                self._tidy(key)

    def _tidy(self, key: str) -> None:
        row = self._keys[key]
        if row.past or _in_use(row.state):
            return
        del self._keys[key]


def _in_use(state: KeyState) -> bool:
    return bool(
        state.holders or state.grants or state.waiting or state.cooling or state.hold is not None
    )


def _head(state: KeyState, now: int) -> KeyState:
    waiting = live(state.waiting[:WINDOW], now)
    return replace(state, waiting=waiting, first=0, last=0)
