"""What a store was asked for, kept by the store itself: in the order and with the instant of each.

An operation and its entry are one step: a script of Redis, a transaction of SQLite, a commit of
etcd or ZooKeeper. So it is known of every call whether it was done, whoever heard the answer, and
by which instant; and of two which one came first. An entry says what was *asked for*.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any
from unittest import mock

from celery_dlock import registry, runtime
from celery_dlock.core.operations import Leave, Reap
from celery_dlock.stores.base import BackendOptions, LockBackend
from celery_dlock.stores.consensus.optimistic import OptimisticBackend
from celery_dlock.stores.consensus.rows import Commit, Committed, Kind, Name, Row
from celery_dlock.stores.redis.scripts import Command, Script
from celery_dlock.stores.redis.store import RedisBackend
from celery_dlock.stores.sql.sqlite import SqliteBackend
from celery_dlock.stores.subprocess import HelperBackend
from tests.chaos.trace import Call, CallId, Seen, Sweep, Trace, What

LEDGER = "ledger"


@dataclass(frozen=True, slots=True)
class Entry:
    """*call* asked for *what*, which was done at *now*.

    *gone* are the holders whose rows were not there any more, on a store with leases of its own,
    and *number* is that of the commit there.
    """

    call: CallId
    what: tuple[What, ...]
    now: int
    gone: frozenset[str] = frozenset()
    number: int = 0


@contextmanager
def tracing(folder: Path) -> Iterator[Callable[..., LockBackend]]:
    """What is asked of the stores that are opened in the block is in *folder*, and in the store."""
    opens, trace = registry.open_backend, Trace(folder)

    def opened(url: str, options: BackendOptions, **how: Any) -> LockBackend:
        store = opens(url, options, **how)
        if isinstance(store, HelperBackend):
            kind, *rest = pickle.loads(store._recipe)
            store._recipe = pickle.dumps((Followed(folder, kind), *rest))
        else:
            _keep(store, trace)
        return store

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(runtime, "open_backend", opened))
        stack.enter_context(_in_scripts(trace))
        yield opened


@dataclass(frozen=True, slots=True)
class Followed:
    """A store that is traced in the helper process which uses it."""

    folder: Path
    kind: type[LockBackend]

    def from_url(self, url: str, options: BackendOptions) -> LockBackend:
        store = self.kind.from_url(url, options)
        _keep(store, Trace(self.folder))
        return store


def ledger(store: LockBackend) -> list[Entry] | None:
    """All entries in their order; ``None`` of a store that keeps none.

    A Redlock has none: there a key has a state at each of five nodes, and which of them counted is
    decided by whoever asked them.
    """
    match store:
        case RedisBackend():
            with store._asked() as session:
                return list(map(_of_script, session.run(("LRANGE", LEDGER, 0, -1))))
        case SqliteBackend():
            with store.transaction() as (db, _):
                return [pickle.loads(row[0]) for row in db.execute(f"{_READ} ORDER BY place")]
        case OptimisticBackend():
            return sorted(_of_rows(store), key=lambda entry: entry.number)
        case _:
            return None


def _keep(store: LockBackend, trace: Trace) -> None:
    trace.follow(store)
    match store:
        case RedisBackend():
            trace.in_scripts = True
        case SqliteBackend():
            _in_transactions(store, trace)
        case OptimisticBackend():
            _in_commits(store, trace)


# Redis: a script notes what it is about to do, and goes by that instant.

_CLOCK = (files("celery_dlock.stores.redis") / "lua" / "clock.lua").read_text(encoding="utf-8")
_NOTES = f"""
local ENTRY, NOW = table.remove(ARGV), clock()
redis.call('RPUSH', '{LEDGER}', integer(NOW) .. ' ' .. ENTRY)
local function clock() return NOW end
"""


@contextmanager
def _in_scripts(trace: Trace) -> Iterator[None]:
    on, again = Script.on, Leave.again

    def noting(script: Script, keys: Sequence[str], arguments: Sequence[Any]) -> Command:
        call = trace.under_way
        if call is None or not trace.in_scripts:
            return on(script, keys, arguments)
        entry = pickle.dumps((call.id, tuple(call.next())))
        return on(_noting(script), keys, [*arguments, entry])

    def asks_again(leave: Leave) -> Leave:
        if trace.under_way is not None:
            trace.under_way.doing = [again(leave)]
        return again(leave)

    with mock.patch.object(Script, "on", noting), mock.patch.object(Leave, "again", asks_again):
        yield


@lru_cache
def _noting(script: Script) -> Script:
    return Script.with_text(script.text.replace(_CLOCK, _CLOCK + _NOTES))


def _of_script(line: bytes) -> Entry:
    now, _, entry = line.partition(b" ")
    call, what = pickle.loads(entry)
    return Entry(call, what, int(now))


# SQL: a table that is written in the same transaction.

_MADE = f"CREATE TABLE IF NOT EXISTS {LEDGER} (place INTEGER PRIMARY KEY, entry BLOB)"
_WRITE = f"INSERT INTO {LEDGER} (entry) VALUES (?)"
_READ = f"SELECT entry FROM {LEDGER}"


def _in_transactions(store: Any, trace: Trace) -> None:
    begins = store.transaction

    @contextmanager
    def noting(keys: Sequence[str] = (), **how: Any) -> Iterator[Any]:
        with begins(keys, **how) as (db, now):
            call = trace.under_way
            if call is not None and keys:
                sweeps = isinstance(call.asked[0], Sweep)
                what = map(Reap, keys) if sweeps else call.asked
                db.execute(_MADE)
                db.execute(_WRITE, (pickle.dumps(Entry(call.id, tuple(what), now)),))
            yield db, now

    store.transaction = noting


# etcd, ZooKeeper: a row that is made by the same commit, if that writes anything.


def _in_commits(store: Any, trace: Trace) -> None:
    rows: Any = store._rows
    commits: Callable[[Commit], Committed | None] = rows.commit
    reads: Callable[[Sequence[Name]], list[Row | None]] = rows.read

    def now() -> int:
        """Each attempt asks what time it is before it reads who is there."""
        at = int(rows.now())
        if trace.under_way is not None:
            trace.under_way.attempt = Seen(at)
        return at

    def reading(names: Sequence[Name]) -> list[Row | None]:
        found = reads(names)
        call = trace.under_way
        if call is not None and call.attempt is not None:
            pairs = zip(names, found, strict=True)
            gone = {name.part for name, row in pairs if name.kind is Kind.HOLDER and row is None}
            call.attempt = Seen(call.attempt.now, call.attempt.gone | gone)
        return found

    def noting(commit: Commit) -> Committed | None:
        call = trace.under_way
        ours = commit.name.kind in (Kind.VERSION_ROW, Kind.SWAP)
        if ours and call is not None and call.attempt is not None:
            _note(commit, call, call.attempt)
        return commits(commit)

    rows.commit, rows.read = noting, reading
    store._transactions.now = store._swaps._now = now


def _note(commit: Commit, call: Call, attempt: Seen) -> None:
    """What changes nothing is left as it is: it leaves the version row where it was."""
    if not commit.changes:
        call.seen |= dict.fromkeys(call.doing, attempt)
        return
    entry = Entry(call.id, tuple(call.doing), attempt.now, attempt.gone)
    call.tries += 1
    part = "-".join(map(str, (*call.id, call.tries)))
    commit.create[Name(Kind.NOTE, LEDGER, part)] = pickle.dumps(entry)


def _of_rows(store: OptimisticBackend) -> Iterator[Entry]:
    rows = store._rows
    names = [name for name in rows.names(Kind.NOTE) if name.key == LEDGER]
    for start in range(0, len(names), 100):
        for row in rows.read(names[start : start + 100]):
            assert row is not None
            entry: Entry = pickle.loads(row.value)
            yield Entry(entry.call, entry.what, entry.now, entry.gone, row.born)
