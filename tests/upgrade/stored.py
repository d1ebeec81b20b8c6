"""What lies in a store, as text that can be kept, and put into an empty store again."""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack

from celery_dlock.stores.base import BackendOptions, NoteStore
from celery_dlock.stores.consensus.rows import Kind, Name, Row
from celery_dlock.stores.postgresql.store import PostgresqlBackend
from celery_dlock.stores.redis.store import RedisBackend
from celery_dlock.stores.sql.sqlite import SqliteBackend
from celery_dlock.testing.project import ManualClock
from tests.contract.memory_rows import RowsBackend
from tests.services.postgresql import PostgresqlServer
from tests.services.redis import RedisServer

#: Where the records lie, one for each store.
RECORDS = Path(__file__).parent / "records"


def options(clock: ManualClock) -> BackendOptions:
    return BackendOptions(prefix="upgrade", clock=clock)


@contextmanager
def sqlite(folder: Path, clock: ManualClock, record: Any = None) -> Iterator[NoteStore]:
    """The store on SQLite, with what is in the *record*."""
    url = file_of(folder, record)
    with closing(SqliteBackend.from_url(url, options(clock))) as store:
        yield store


def file_of(folder: Path, record: Any = None) -> str:
    """The URL of the file there, with what is in the *record*."""
    path = folder / "locks.db"
    if record is not None:
        path.write_bytes(zlib.decompress(b64decode(record)))
    return f"sqlite:///{path}"


def read_sqlite(folder: Path) -> str:
    return _text(zlib.compress((folder / "locks.db").read_bytes(), 9))


@contextmanager
def on_redis(server: RedisServer, clock: ManualClock, record: Any = None) -> Iterator[NoteStore]:
    with server.client() as client:
        client.flushall()
        for name, kind, value in record or ():
            _write(client, b64decode(name), kind, [b64decode(part) for part in value])
    with closing(RedisBackend.from_url(server.url, options(clock))) as store:
        yield store


def read_redis(server: RedisServer) -> list[tuple[str, str, list[str]]]:
    with server.client() as client:
        return sorted(_read(client, name) for name in client.scan_iter(count=1000))


def _read(client: Any, name: bytes) -> tuple[str, str, list[str]]:
    kind = client.type(name).decode()
    if kind == "string":
        parts = [client.get(name)]
    elif kind == "hash":
        parts = [each for pair in sorted(client.hgetall(name).items()) for each in pair]
    else:
        assert kind == "zset", kind
        scored = client.zrange(name, 0, -1, withscores=True)
        parts = [each for member, score in scored for each in (member, repr(score).encode())]
    return _text(name), kind, [_text(part) for part in parts]


def _write(client: Any, name: bytes, kind: str, parts: list[bytes]) -> None:
    if kind == "string":
        client.set(name, parts[0])
        return
    pairs = dict(zip(parts[::2], parts[1::2], strict=True))
    if kind == "hash":
        client.hset(name, mapping=pairs)
    else:
        client.zadd(name, {member: float(score) for member, score in pairs.items()})


@contextmanager
def on_postgresql(
    server: PostgresqlServer, clock: ManualClock, record: Any = None
) -> Iterator[NoteStore]:
    """The store there, whose tables and functions are those of the *record*."""
    server.query("DROP SCHEMA IF EXISTS dlock CASCADE")
    if record is not None:
        server.execute("\n".join(record))
    with closing(PostgresqlBackend.from_url(server.url, options(clock))) as store:
        yield store


@contextmanager
def as_rows(clock: ManualClock, record: Any = None) -> Iterator[NoteStore]:
    """What etcd and ZooKeeper keep for a key, without a server."""
    store = RowsBackend(options(clock))
    shelf = store.rows.shelf
    shelf.rows.clear()
    for kind, key, part, value, stamp, born in record or ():
        shelf.rows[Name(Kind(kind), key, part)] = Row(b64decode(value), stamp, born)
        shelf.number = max(shelf.number, int(stamp))
    with closing(store):
        yield store


def read_rows(store: RowsBackend) -> list[tuple[str, str, str, str, str, int]]:
    return sorted(
        (name.kind.value, name.key, name.part, _text(row.value), row.stamp, row.born)
        for name, row in store.rows.shelf.rows.items()
    )


def grow(store: NoteStore) -> None:
    """Add to each holder that lies in *store* a field that only a later version knows."""
    match store:
        case SqliteBackend():
            with store.transaction(["held"]) as (db, _):
                for key, holders in db.execute("SELECT key, holders FROM state").fetchall():
                    grown = json.dumps([holder | {"later": 1} for holder in json.loads(holders)])
                    db.execute("UPDATE state SET holders=? WHERE key=?", (grown, key))
        case RowsBackend():
            rows = store.rows.shelf.rows
            for name, row in rows.items():
                if name.kind is Kind.VERSION_ROW:
                    said = json.loads(row.value) | {"later": 1}
                    said["holders"] = [h | {"later": 1} for h in said.get("holders", ())]
                    rows[name] = replace(row, value=json.dumps(said).encode())
        case RedisBackend():
            with store._session() as session:
                for name in session.run(("KEYS", "*:state")):
                    holders, *others = msgpack.unpackb(session.run(("GET", name)), raw=True)
                    holders = [[*holder, b"later", 1] for holder in holders]
                    state = [holders, *others, b"later", 1]
                    session.run(("SET", name, msgpack.packb(state, use_bin_type=False)))


def _text(value: bytes) -> str:
    return b64encode(value).decode()
