"""What a store was asked for, kept by the store itself: in the order and with the instant of each.

An operation and its entry are one step: a script of Redis, a transaction of SQLite or PostgreSQL, a
commit of etcd or ZooKeeper. So it is known of every call whether it was done, whoever heard the
answer, and by which instant; and of two which one came first. An entry says what was *asked for*.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, cast
from unittest import mock

from celery_dlock import registry, runtime
from celery_dlock.core.operations import Leave, Operation, Reap
from celery_dlock.stores.base import BackendOptions, LockBackend
from celery_dlock.stores.consensus.optimistic import OptimisticBackend
from celery_dlock.stores.consensus.rows import Commit, Committed, Kind, Name, Row
from celery_dlock.stores.postgresql import rows
from celery_dlock.stores.postgresql import store as store_rules
from celery_dlock.stores.postgresql.connection import (
    Connections,
    Fly,
    Refused,
    Statement,
    read_json,
)
from celery_dlock.stores.postgresql.flight import GO, numbered
from celery_dlock.stores.postgresql.store import PostgresqlBackend
from celery_dlock.stores.redis.scripts import Command, Script
from celery_dlock.stores.redis.store import RedisBackend
from celery_dlock.stores.sql.sqlite import SqliteBackend
from celery_dlock.stores.subprocess import HelperBackend
from tests.chaos.trace import Call, CallId, Seen, Swap, Sweep, Trace, What

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
            with store._session() as session:
                return list(map(_of_script, session.run(("LRANGE", LEDGER, 0, -1))))
        case SqliteBackend():
            with store.transaction() as (db, _):
                rows = db.execute(f"{_READ} ORDER BY place")
                return [pickle.loads(row[0]) for row in rows.fetchall()]
        case PostgresqlBackend():
            return list(_of_flights(store))
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
        case PostgresqlBackend():
            _in_flights(store, trace)
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


# PostgreSQL: a row that is written in the same flight, if that does what was asked for.

_TABLE = b"""CREATE TABLE IF NOT EXISTS dlock.ledger
    (place BIGSERIAL PRIMARY KEY, entry BYTEA NOT NULL, now BIGINT NOT NULL)"""
_TAKE, _RELEASE = (
    numbered(f"SELECT dlock.{function}({', '.join('?' * values)})")
    for function, values in (("take", 11), ("release", 7))
)
_RENEW, _LOAD = numbered(store_rules._RENEW), numbered(rows.LOAD)
_TAKEN = b"""INSERT INTO dlock.ledger (entry, now) SELECT $1, since FROM dlock.holder
    WHERE prefix=$2 AND key=$3 AND task=$4 AND nonce=$5 AND xmin = pg_current_xact_id()::xid"""
_RELEASED = b"""WITH released AS MATERIALIZED (%b AS is_done),
    noted AS (INSERT INTO dlock.ledger (entry, now) SELECT $8,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint FROM released WHERE is_done)
    SELECT is_done FROM released""" % (_RELEASE)
_RENEWED = _RENEW.replace(b"lock INT)", b"lock INT, entry TEXT)").replace(
    b"\nSELECT asked.number",
    b", noted AS (INSERT INTO dlock.ledger (entry, now) SELECT decode(entry, 'hex'), now "
    b"FROM asked, clock WHERE locked)\nSELECT asked.number",
)
_DONE = f"INSERT INTO dlock.ledger (entry, now) SELECT $1, $2::bigint WHERE {GO}".encode()
_SWAPPED = f"""INSERT INTO dlock.ledger (entry, now)
    SELECT $1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint WHERE {GO}""".encode()


def _in_flights(store: PostgresqlBackend, trace: Trace) -> None:
    attempts, makes = store._attempt, store._connections._make

    def attempt(operation: Operation[Any]) -> Any:
        if trace.under_way is not None:
            trace.under_way.doing = [operation]
        return attempts(operation)

    def make() -> Connections:
        connections: Any = makes()
        prepares, flies = connections._prepare, connections.fly

        def prepare(fly: Fly) -> str:
            name: str = prepares(fly)
            with suppress(Refused):  # another process makes it
                fly([Statement(_TABLE)])
            return name

        def noting(statements: Sequence[Statement], *, repeats: bool = True) -> list[Any]:
            call = trace.under_way
            noted = statements if call is None else _with_entry(call, statements, store._prefix)
            answers: list[Any] = flies(noted, repeats=repeats)
            if len(statements) == 1:
                return answers[1:2] if len(noted) > 1 else answers
            if len(noted) > len(statements):
                del answers[-2]
            if call is not None and statements[2].text == _LOAD:
                now, *_ = read_json(answers[2][0][0][0])
                call.attempt = Seen(now)
                call.seen |= dict.fromkeys((*call.asked, *call.doing), call.attempt)
            return answers

        connections._prepare, connections.fly = prepare, noting
        return connections  # type: ignore[no-any-return]

    store.__dict__.update(_attempt=attempt)
    store._connections._make = make


def _with_entry(call: Call, statements: Sequence[Statement], prefix: str) -> Sequence[Statement]:
    """*statements* with one more before the commit, or with one that writes the entry, too."""
    what = call.doing[0]
    entry = pickle.dumps((call.id, (what,)))
    texts = [statement.text for statement in statements]
    if _TAKE in texts:
        claim = cast("Operation[Any]", what).claim
        values = entry, prefix, claim.key, claim.task, claim.nonce
        return [Statement(b"BEGIN"), *statements, Statement(_TAKEN, values), Statement(b"COMMIT")]
    if _RELEASE in texts:
        return [_replaced(each, _RELEASE, _RELEASED, entry) for each in statements]
    if _RENEW in texts:
        return [_renewing(call, each) if each.text == _RENEW else each for each in statements]
    if isinstance(what, Swap):
        call.seen[what] = Seen(0)
        return [*statements[:-1], Statement(_SWAPPED, (entry,)), statements[-1]]
    if call.attempt is not None and any(b"'dlock.go'" in text for text in texts):
        return [*statements[:-1], Statement(_DONE, (entry, call.attempt.now)), statements[-1]]
    return statements


def _replaced(statement: Statement, text: bytes, by: bytes, value: object) -> Statement:
    return Statement(by, (*statement.values, value)) if statement.text == text else statement


def _renewing(call: Call, statement: Statement) -> Statement:
    clock, asked, *prefixes = statement.values
    claims = [
        {**row, "entry": pickle.dumps((call.id, (call.asked[row["number"]],))).hex()}
        for row in json.loads(str(asked))
    ]
    return Statement(_RENEWED, (clock, json.dumps(claims), *prefixes))


def _of_flights(store: PostgresqlBackend) -> Iterator[Entry]:
    read = Statement(b"SELECT entry, now FROM dlock.ledger ORDER BY place")
    for entry, now in store._connections().fly([read])[0][0]:
        call, what = pickle.loads(entry)
        yield Entry(call, what, now)
