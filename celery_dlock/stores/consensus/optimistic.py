"""The machine over a store that commits only if a key's version row still stands: ZooKeeper, etcd.

That is optimistic locking, by compare-and-set. A free key costs one commit to take, on the chance
that it has no version row at all, and one to release, on the chance that the row is still as it
was left. Whoever is wrong reads the key, computes and commits again; of two that overlap, one
always gets through. A process that was wrong about a key reads it first from then on, until it has
found it free.

The store has no clock that a commit could ask. What hangs on time for safety, the life of a
holder, is the store's own: a holder's row is gone when its process is. What hangs on it for
liveness alone, how long to wait for an answer and the like, goes by :meth:`Rows.now`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from celery_dlock.core.backoff import CHANCE
from celery_dlock.core.lease import SECOND
from celery_dlock.core.operations import Enter, Leave, Operation, Renew
from celery_dlock.core.plain import is_done
from celery_dlock.core.state import (
    Claim,
    EnterVerdict,
    KeyState,
    LeaveVerdict,
    Left,
    Mode,
    NotHeld,
    Renewed,
    RenewVerdict,
    Replaced,
    Run,
    Unknown,
    Waiting,
)
from celery_dlock.errors import BackendUnavailable
from celery_dlock.forking import PerProcess
from celery_dlock.stores.base import (
    BackendOptions,
    Clock,
    DeadMessage,
    KeyPage,
    NoteStore,
    Reply,
    Swept,
    Wake,
    by_age,
    last_of,
    page,
)
from celery_dlock.stores.consensus.commit import KeyMutexes, Transactions, UsedKeys, read_each
from celery_dlock.stores.consensus.local_leases import LocalLeases
from celery_dlock.stores.consensus.messages import items_of, letter_of
from celery_dlock.stores.consensus.record import decode, listed_dead, number_in
from celery_dlock.stores.consensus.rows import PARTS, Commit, Kind, Name, Row, Rows
from celery_dlock.stores.consensus.save import left_alone, taken_free
from celery_dlock.stores.consensus.swaps import Swaps
from celery_dlock.stores.unreadable import UnreadableKey, is_text

V = TypeVar("V")

logger = logging.getLogger("celery_dlock")

#: The token of a grant until its commit has a number.
_UNNUMBERED = -1


class OptimisticBackend(NoteStore):
    """A lock store over :class:`~celery_dlock.stores.consensus.rows.Rows`.

    With ``options.clock`` leases end by that clock, for tests; without, with the process.
    """

    def __init__(self, rows: Rows, options: BackendOptions) -> None:
        self._rows = rows
        self._clock = options.clock
        self._transactions = Transactions(rows, options.clock)
        self._notes = Notes(rows)
        self._swaps = Swaps(rows, self._transactions.now)
        self._own = PerProcess(lambda: _Own(rows))
        rows.know_holders(self._knows)
        self._sweeping = Sweeping(rows, self.reap, self._swaps.tidy, self._transactions.now)

    def _knows(self, holder: Name) -> bool:
        return self._own().leases.knows(holder)

    def apply(self, operation: Operation[V]) -> Reply[V]:
        return self._reply(operation)

    def _reply(self, operation: Operation[Any]) -> Reply[Any]:
        match operation:
            case Enter():
                return self._enter(operation)
            case Leave():
                return self._leave(operation)
            case _:
                return self._transactions.apply(operation).reply

    def _enter(self, enter: Enter) -> Reply[EnterVerdict]:
        if self._clock is not None or enter.claim.enqueues:  # it asks for a turn, and for no lease
            return self._ask(enter)
        row, leases = _row(enter.claim), self._own().leases
        leases.expect(row, enter.claim.ttl)  # before it is asked for: the reply may be lost
        try:
            reply = self._ask(enter)
        finally:
            leases.answered(row)
        if isinstance(reply.verdict, Run):
            leases.granted(row)
        else:
            leases.forget(row)
        return reply

    def _ask(self, enter: Enter) -> Reply[EnterVerdict]:
        own = self._own()
        free = None if enter.claim.key in own.used else self._enter_free(enter.claim)
        return free or self._enter_used(enter, own)

    def _enter_free(self, claim: Claim) -> Reply[EnterVerdict] | None:
        """On the chance that nobody uses the key."""
        row = _row(claim)
        commit = None if self._clock else taken_free(claim, row, self._transactions.now())
        committed = None if commit is None else self._rows.commit(commit)
        if committed is None or committed.version_row is None:
            return None
        self._own().alone[_taken(claim)] = committed.version_row
        token = 0 if claim.mode is Mode.SHARED else committed.number
        return Reply(Run(0, token))

    def _enter_used(self, enter: Enter, own: _Own) -> Reply[EnterVerdict]:
        applied = self._transactions.apply(enter, _UNNUMBERED)
        version_row, number = applied.committed.version_row, applied.committed.number
        own.used.note(enter.claim.key, used=version_row is not None and version_row.born != number)
        verdict, wakes = applied.reply.verdict, applied.reply.wakes
        if isinstance(verdict, Run) and verdict.token == _UNNUMBERED:
            verdict = replace(verdict, token=number)
        return Reply(verdict, wakes)

    def _leave(self, leave: Leave) -> Reply[LeaveVerdict]:
        own, row = self._own(), _row(leave.claim)
        version_row = own.alone.pop(_taken(leave.claim), None)
        if leave.claim.key in own.used:  # somebody has come, through this process
            version_row = None
        reply = self._leave_alone(leave, row, version_row)
        if reply is None:
            applied = self._transactions.apply(leave)
            own.used.note(leave.claim.key, used=applied.committed.version_row is not None)
            reply = applied.reply
        if isinstance(reply.verdict, Left):  # else it may be that it has yet to come
            own.leases.forget(row)
        return reply

    def _leave_alone(
        self, leave: Leave, row: Name, version_row: Row | None
    ) -> Reply[LeaveVerdict] | None:
        """On the chance that nobody has come since it took the key, and left *version_row*."""
        claim, outcome = leave.claim, leave.outcome
        commit = version_row and left_alone(
            claim, row, outcome, version_row, self._transactions.now()
        )
        if not commit or self._rows.commit(commit) is None:
            return None
        return Reply(Left(is_done(claim, outcome)))

    def renew(self, claims: Sequence[Claim]) -> list[RenewVerdict]:
        if self._clock is not None:
            return [self._renew_by_clock(claim) for claim in claims]
        leases = self._own().leases
        replaced = self._replaced([claim for claim in claims if claim.gives_way])
        ends: dict[Claim, int] = {}
        for ttl in {claim.ttl for claim in claims}:
            same = [claim for claim in claims if claim.ttl == ttl and claim not in replaced]
            end = self._transactions.now() + ttl
            alive = self._rows.alive([_row(claim) for claim in same], ttl)
            for claim, lives in zip(same, alive, strict=True):
                if lives and leases.renew(_row(claim), ttl):
                    ends[claim] = end
        renewed = {claim: Renewed(end) for claim, end in ends.items()}
        return [replaced.get(claim) or renewed.get(claim) or NotHeld() for claim in claims]

    def _replaced(self, claims: Sequence[Claim]) -> dict[Claim, Replaced]:
        """Which of *claims* are asked to give way; their own rows do not say so."""
        replaced: dict[Claim, Replaced] = {}
        rows = read_each(self._rows, [_version_row(claim.key) for claim in claims])
        for claim in claims:
            row = rows[_version_row(claim.key)]
            with suppress(UnreadableKey):
                for holder in () if row is None else decode(row.value).holders:
                    if holder.owner == claim.owner and holder.replaced_by:
                        replaced[claim] = Replaced(holder.replaced_by)
        return replaced

    def _renew_by_clock(self, claim: Claim) -> RenewVerdict:
        try:
            return self.apply(Renew(claim)).verdict
        except UnreadableKey:  # which must not cost the others their leases
            return Unknown()

    def lease_of(self, ttl: int) -> int:
        return ttl if self._clock is not None else self._rows.lease_of(ttl)

    def granted(self) -> float | None:
        return self._rows.granted()

    def now(self) -> int:
        return self._transactions.now()

    def certain(self, timeout: float) -> bool:
        return self._rows.certain(timeout)

    def sweep(self, limit: int = 100) -> Swept:
        swept = self._sweeping.sweep(limit)
        return replace(swept, lost_data=self._rows.lost_data())

    def parked(self, task_ids: Collection[str]) -> list[tuple[str, str]]:
        items = items_of(self._rows, task_ids)
        return [(item.key, item.task) for item in items if not item.is_dead]

    def message(self, key: str, task: str) -> bytes | None:
        (row,) = self._rows.read([Name(Kind.MESSAGE, key, task)])
        return None if row is None else row.value

    def dead(self, limit: int = 100) -> list[DeadMessage]:
        listed = map(letter_of, self._rows.first(Kind.DIED, limit))
        return self._letters(list(dict.fromkeys(name for name in listed if name is not None)))

    def dead_of(self, task_ids: Collection[str]) -> list[DeadMessage]:
        items = items_of(self._rows, task_ids)
        return self._letters([Name(Kind.DEAD, i.key, i.task) for i in items if i.is_dead])

    def count_dead(self) -> int:
        return len(self._rows.names(Kind.DIED))

    def _letters(self, names: list[Name]) -> list[DeadMessage]:
        """The dead letters in the rows *names*; one that is replayed meanwhile is left out."""
        rows = read_each(self._rows, names).items()
        values = ((name, row.value) for name, row in rows if row is not None)
        letters = [DeadMessage(name.key, *listed_dead(name.part, value)) for name, value in values]
        return sorted(letters, key=by_age)

    def note(self, key: str, token: int, notes: Mapping[str, bytes | None]) -> bool:
        """All or none of a hundred notes, or of half a megabyte; more are written in steps."""
        return self._notes.write(key, token, notes)

    def notes(self, key: str) -> dict[str, bytes]:
        return self._notes.read(key)

    def swap(self, name: str, was: bytes | None, becomes: bytes | None, stays: int) -> bytes | None:
        return self._swaps.swap(name, was, becomes, stays)

    def swapped(self, limit: int = 100) -> list[tuple[str, bytes]]:
        return self._swaps.listed(limit)

    def peek(self, key: str, limit: int | None = None) -> KeyState:
        return self._transactions.peek(key, limit)

    def position(self, key: str, task: str) -> tuple[Waiting, int] | None:
        return self._transactions.position(key, task)

    def keys(self, cursor: str = "", limit: int = 100, *, waiting: bool = False) -> KeyPage:
        """With *waiting* it goes through all that are due some time, for each page anew."""
        last = last_of(cursor)
        if not waiting:
            listed = page(self._rows.keys(last, limit + 1), limit)
            return replace(listed, keys=tuple(filter(is_text, listed.keys)))
        keys = {name.key for name in self._rows.names(Kind.DUE)}
        return page(
            sorted(key for key in filter(is_text, keys) if last is None or key > last), limit
        )

    def look(self, keys: Sequence[str]) -> list[KeyState]:
        """Each as it was a moment ago: a task that has just released may seem to have lost it."""
        return self._transactions.look(keys)

    def close(self) -> None:
        self._own().leases.clear()  # they go with the connection
        self._rows.close()


class _Own:
    """What a process remembers of its own claims, and the thread that watches over them.

    ``alone`` are those that took a free key, with the version row that they left: a release
    starts from that.
    """

    def __init__(self, rows: Rows) -> None:
        self.leases = LocalLeases(rows.drop)
        self.alone: dict[tuple[str, str, str], Row] = {}
        self.used = UsedKeys()


def _version_row(key: str) -> Name:
    return Name(Kind.VERSION_ROW, key)


def _taken(claim: Claim) -> tuple[str, str, str]:
    """What tells it apart: joined, as in the name of its row, two of these texts may be others."""
    return claim.key, claim.task, claim.nonce


def _row(claim: Claim) -> Name:
    return Name(Kind.HOLDER, claim.key, claim.owner)


#: How much goes into one commit: of etcd's 128 parts, and in bytes of ZooKeeper's megabyte.
MOST_PARTS = 100
LARGEST_COMMIT = 500_000

Texts = Mapping[str, bytes | None]


class Notes:
    """Notes beside a key: a row each, and one more, the bar, which every write compares and sets.

    The bar says the largest token that has written, and every write moves it, as every change of a
    key moves its version row. Once made it stays, so that a smaller token is refused for ever. The
    key's own version row has no part in this: who notes something is in nobody's way.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._mutexes = KeyMutexes()

    def write(self, key: str, token: int, notes: Texts) -> bool:
        """All or none of what one commit takes; more than that is written step by step."""
        return all(
            self._mutexes.until_committed(key, partial(self._write, key, token, part))
            for part in _parts(notes)
        )

    def _write(self, key: str, token: int, notes: Texts) -> bool | None:
        """``None`` if somebody else was faster."""
        names = [Name(Kind.NOTE, key, name) for name in notes]
        bar, *rows = self._rows.read([_bar(key), *names])
        if bar is not None and token < number_in(bar):
            return False
        commit = Commit(_bar(key), bar, str(token).encode())
        for name, text, row in zip(names, notes.values(), rows, strict=True):
            if text is not None and row is None:
                commit.create[name] = text
            elif text is not None:
                commit.update[name] = text
            elif row is not None:
                commit.delete.add(name)
        return None if self._rows.commit(commit) is None else True

    def read(self, key: str) -> dict[str, bytes]:
        """As they stood at one instant, after everything of which its writer had been told."""
        return self._mutexes.until_committed(key, lambda: self._read(key))

    def _read(self, key: str) -> dict[str, bytes] | None:
        (bar,) = self._rows.read([_bar(key)])
        # Without a bar nobody has ever written: there is no need to look through all notes.
        names = self._rows.names_of(Kind.NOTE, [key]) if bar else []
        rows = zip(names, self._rows.read(names), strict=True)
        notes = {name.part: row.value for name, row in rows if row is not None}
        still = Commit(_bar(key), bar, None if bar is None else bar.value)
        return None if self._rows.commit(still) is None else notes


def _parts(notes: Texts) -> Iterator[dict[str, bytes | None]]:
    """What is written one after the other; at least one, which may be nothing."""
    part, size = dict[str, bytes | None](), 0
    for name, text in notes.items():
        grown = size + len(name) + len(text or b"")
        if len(part) == MOST_PARTS or (part and grown > LARGEST_COMMIT):
            yield part
            part, grown = {}, len(name) + len(text or b"")
        part[name], size = text, grown
    yield part


def _bar(key: str) -> Name:
    return Name(Kind.BAR, key)


#: Seconds between two looks for what processes have left behind that are gone.
TIDY_EVERY = 600.0

#: Seconds for which a key is left alone that has failed.
REST = 30.0

#: Of so many keys that fail one after another the cause is the store.
STORE_UNAVAILABLE = 3


class Sweeping:
    """The sweeps of one process, in which *reap* lets time pass on a key.

    A key that cannot be read, or that others change without a pause, must not keep the rest
    waiting. So it is left alone for a while; the wakes from before it failed are published.
    """

    def __init__(
        self,
        rows: Rows,
        reap: Callable[[str], Reply[None]],
        tidy: Callable[[int], None],
        now: Clock,
    ) -> None:
        self._rows = rows
        self._reap = reap
        self._tidy = tidy
        self._now = now
        self._resting: dict[str, float] = {}
        self._tidy_at = time.monotonic() + TIDY_EVERY * CHANCE.random()

    def sweep(self, limit: int) -> Swept:
        now = self._now()
        listed = self._due(limit + 1)
        overdue = [name for name in listed if int(name.part) <= now][:limit]
        wakes = self._reaped(name.key for name in overdue)
        try:
            wakes += self._tidied(limit)
            later = self._due(1) if overdue else listed
        except BackendUnavailable:
            if not wakes:
                raise
            later = overdue  # they are woken, and the next sweep comes at once
        return Swept(tuple(wakes), max(0, int(later[0].part) - now) / SECOND if later else None)

    def _due(self, limit: int) -> list[Name]:
        now = time.monotonic()
        self._resting = {key: until for key, until in self._resting.items() if until > now}
        limit += len(self._resting)
        listed = self._instants(limit)
        return [name for name in listed if name.key not in self._resting]

    def _instants(self, limit: int) -> list[Name]:
        """The first that are due at an instant, however many rows of somebody else's come first."""
        asked = limit
        while True:
            listed = self._rows.first(Kind.DUE, asked)
            due = [name for name in listed if name.part.isdecimal() and is_text(name.key)]
            if len(due) >= limit or len(listed) < asked:
                return due
            asked += limit

    def _reaped(self, keys: Iterable[str]) -> list[Wake]:
        wakes: list[Wake] = []
        reaped = failed = 0
        for key in keys:
            try:
                wakes += self._reap(key).wakes
                reaped, failed = reaped + 1, 0
            except Exception as exc:
                self._resting[key] = time.monotonic() + REST
                logger.warning("nobody is woken for %r", key, exc_info=True)
                if not isinstance(exc, BackendUnavailable) or isinstance(exc, UnreadableKey):
                    continue
                failed += 1
                if failed == STORE_UNAVAILABLE and not reaped:
                    raise
                if failed == STORE_UNAVAILABLE:
                    break
        return wakes

    def _tidied(self, limit: int) -> list[Wake]:
        """Keys are due only when messages wait; others may be left behind by dead processes."""
        if time.monotonic() < self._tidy_at:
            return []
        self._tidy_at = time.monotonic() + TIDY_EVERY * CHANCE.uniform(0.5, 1.5)
        part = CHANCE.randrange(PARTS)
        self._rows.tidy(part)
        self._tidy(part)
        names = self._rows.names(Kind.VERSION_ROW, part)
        return self._reaped(name.key for name in CHANCE.sample(names, min(limit, len(names))))
