"""What somebody else may have written into a store: its raw contents, and nonsense in their place.

A :class:`Contents` tells what lies there of one key and puts something else in its place. What that
is comes from a random number, so an example of Hypothesis is one number.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, Protocol

import grpc
import psycopg
import redis
from kazoo.client import KazooClient

from celery_dlock.stores.consensus.rows import Kind, Name
from celery_dlock.stores.etcd.client import rpc
from celery_dlock.stores.etcd.names import Names
from celery_dlock.stores.redis import wire
from celery_dlock.stores.zookeeper.rows import Layout
from tests.services.nonsense import ODD, spoilt
from tests.services.stores import Fixture

#: One place in a store, as its :class:`Contents` names it.
Place = tuple[Any, ...]


class Contents(Protocol):
    """The raw contents of one store, as far as they are about one key."""

    def places(self, key: str) -> Sequence[Place]:
        """All that can be damaged, in an order that does not change."""

    def damage(self, place: Place, random: Random) -> None:
        """Put something else in that place; nothing happens where the store refuses it."""

    def spoil(self, key: str) -> None:
        """Nobody can read any longer who holds *key*."""

    def spoil_dead(self, key: str, task: str) -> None:
        """Nobody can read any longer what the dead message of *task* was."""


class InSqlite:
    """Each column of each row: SQLite keeps any type in any of them."""

    def __init__(self, file: Path, prefix: str) -> None:
        self._file = file
        self._prefix = prefix

    def places(self, key: str) -> list[Place]:
        found: list[Place] = []
        with closing(sqlite3.connect(self._file)) as db:
            for table in ("state", "waiting", "message", "dead", "past", "bar", "note"):
                columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
                names = [c for c in columns if c in ("task", "name", "done")]
                told = ", ".join(names) or "key"
                rows = db.execute(
                    f"SELECT {told} FROM {table} WHERE prefix=? AND key=? ORDER BY {told}",
                    (self._prefix, key),
                ).fetchall()
                where = " AND ".join(["prefix=?", "key=?", *(f"{name}=?" for name in names)])
                found += [
                    (table, column, where, (self._prefix, key, *(row if names else ())))
                    for row in rows
                    for column in columns
                    if column != "prefix"
                ]
        return found

    def damage(self, place: Place, random: Random) -> None:
        table, column, where, which = place
        with closing(sqlite3.connect(self._file, timeout=5)) as db:
            db.text_factory = bytes
            found = db.execute(f'SELECT "{column}" FROM {table} WHERE {where}', which).fetchone()
            if found is None:  # its name was damaged before
                return
            was = found[0] if isinstance(found[0], bytes) else str(found[0]).encode()
            value: Any = random.choice(ODD) if random.random() < 0.5 else spoilt(was, random)
            as_text = "?"
            if isinstance(value, str):
                value = value.encode("utf-8", "surrogatepass")
            if isinstance(value, (list, dict)):
                value = json.dumps(value).encode()
            if isinstance(value, bytes) and random.random() < 0.7:
                as_text = "CAST(? AS TEXT)"
            with suppress(sqlite3.IntegrityError), db:
                db.execute(
                    f'UPDATE {table} SET "{column}"={as_text} WHERE {where}', (value, *which)
                )

    def spoil(self, key: str) -> None:
        with closing(sqlite3.connect(self._file, timeout=5)) as db, db:
            db.execute("UPDATE state SET holders='garbage' WHERE key=?", (key,))

    def spoil_dead(self, key: str, task: str) -> None:
        with closing(sqlite3.connect(self._file, timeout=5)) as db, db:
            db.execute("UPDATE dead SET mode='garbage' WHERE key=? AND task=?", (key, task))


class InPostgresql:
    """Each column of each row, as far as its type allows."""

    def __init__(self, url: str, prefix: str) -> None:
        self._url = url
        self._prefix = prefix

    def places(self, key: str) -> list[Place]:
        found: list[Place] = []
        for table in ("holder", "lease", "state", "waiting", "message", "dead", "past", "note"):
            rows = self._run(
                f"SELECT ctid::text FROM dlock.{table} WHERE prefix=%s AND key=%s ORDER BY ctid",
                (self._prefix, key),
            )
            columns = self._run(
                "SELECT column_name, data_type FROM information_schema.columns "
                "WHERE table_schema='dlock' AND table_name=%s AND column_name <> 'prefix' "
                "ORDER BY ordinal_position",
                (table,),
            )
            found += [(table, *column, row) for (row,) in rows for column in columns]
        return found

    def damage(self, place: Place, random: Random) -> None:
        table, column, kind, row = place
        at = f"FROM dlock.{table} WHERE prefix=%s AND ctid=%s::tid"
        was = self._run(f'SELECT "{column}"::text {at}', (self._prefix, row))
        made = spoilt((was[0][0] or "").encode() if was else b"", random)
        value: Any = made if kind == "bytea" else made.decode("utf-8", "replace")
        if kind in ("bigint", "integer", "boolean"):
            value = random.choice([None, True, -1, 0, 2**31, 2**62, 2**63 - 1, -(2**63)])
        with suppress(psycopg.Error):  # it cannot be there
            update = f'UPDATE dlock.{table} SET "{column}"=%s WHERE prefix=%s AND ctid=%s::tid'
            self._run(update, (value, self._prefix, row))

    def spoil(self, key: str) -> None:
        where = "WHERE prefix=%s AND key=%s"
        self._run(
            f"UPDATE dlock.holder SET mode='garbage', task='garbage' {where}", (self._prefix, key)
        )

    def spoil_dead(self, key: str, task: str) -> None:
        where = "WHERE prefix=%s AND key=%s AND task=%s"
        self._run(f"UPDATE dlock.dead SET mode='garbage' {where}", (self._prefix, key, task))

    def _run(self, statement: Any, values: Sequence[Any]) -> list[Any]:
        with psycopg.connect(self._url, autocommit=True) as connection:
            cursor = connection.execute(statement, values)
            return cursor.fetchall() if cursor.description else []


class InRedis:
    """Each value of each name, on any number of servers; a name may also become of another kind."""

    def __init__(self, clients: Sequence[Any], prefix: str) -> None:
        self._clients = clients
        self._prefix = prefix

    def places(self, key: str) -> list[Place]:
        base = wire.base_name(self._prefix, key)
        member = base.partition("}:")[2].encode()
        shared = [name.encode() for name in wire.touched(self._prefix, key)[6:]]
        found: list[Place] = []
        for number, client in enumerate(self._clients):
            own = sorted(client.scan_iter(f"{_literal(base)}:*", count=10_000))
            for name in own:
                found += [(number, name, *part) for part in self._parts(client, name)]
                found.append((number, name, "kind", None))
            for name in shared:
                found += [
                    (number, name, *part)
                    for part in self._parts(client, name)
                    if member in self._about(client, name, part[1])
                ]
        return found

    def _about(self, client: Any, name: bytes, part: bytes) -> bytes:
        """What says of which key a row is that lies among those of others."""
        return bytes(client.hget(name, part)) if name.endswith(b":tasks") else part

    def _parts(self, client: Any, name: bytes) -> list[tuple[str, Any]]:
        match client.type(name):
            case b"string":
                return [("value", b"")]
            case b"hash":
                fields = sorted(client.hkeys(name))
                return [(what, field) for field in fields for what in ("field", "named")]
            case b"zset":
                members = sorted(client.zrange(name, 0, -1))
                return [(what, member) for member in members for what in ("member", "score")]
            case _:
                return []

    def damage(self, place: Place, random: Random) -> None:
        number, name, what, part = place
        with suppress(redis.ResponseError):  # it was made of another kind before
            self._damage(number, name, what, part, random)

    def _damage(self, number: int, name: bytes, what: str, part: Any, random: Random) -> None:
        client = self._clients[number]
        match what:
            case "kind":
                client.delete(name)
                client.rpush(name, b"a list")
            case "value":
                client.set(name, spoilt(client.get(name) or b"", random))
            case "field":
                client.hset(name, part, spoilt(client.hget(name, part) or b"", random))
            case "named":
                client.hset(name, spoilt(part, random), client.hget(name, part) or b"")
            case "member":
                client.zadd(name, {spoilt(part, random): client.zscore(name, part) or 0})
            case "score":
                client.zadd(name, {part: random.choice((0, -1, 2**62, float("inf"), 1e300))})

    def spoil(self, key: str) -> None:
        base = wire.base_name(self._prefix, key)
        for client in self._clients:
            for part in ("state", "lock"):
                if client.exists(f"{base}:{part}"):
                    client.set(f"{base}:{part}", "garbage")

    def spoil_dead(self, key: str, task: str) -> None:
        member = wire.base_name(self._prefix, key).partition("}:")[2]
        graves = wire.of_shards(self._prefix, "dead")[wire.shard_of(key)]
        self._clients[0].hset(graves, f"{member}{task}", "garbage")


def _literal(pattern: str) -> str:
    return "".join(f"\\{c}" if c in "*?[]\\^" else c for c in pattern)


class InEtcd:
    """The value of each row, and a row beside it by another name."""

    def __init__(self, address: str, prefix: str) -> None:
        self._kv = rpc.KVStub(grpc.insecure_channel(address))
        self._names = Names(prefix)

    def places(self, key: str) -> list[Place]:
        found: list[Place] = []
        for kind in Kind:
            first, end = self._names.range(kind)
            rows = self._kv.Range(rpc.RangeRequest(key=first, range_end=end)).kvs
            names = ((kv.key, self._names.read(kind, kv.key)) for kv in rows)
            own = [row for row, name in names if name is not None and name.key == key]
            found += [(row, what) for row in own for what in ("value", "name")]
        return found

    def damage(self, place: Place, random: Random) -> None:
        row, what = place
        (kv,) = self._kv.Range(rpc.RangeRequest(key=row)).kvs
        if what == "value":
            self._put(row, spoilt(kv.value, random))
        else:
            folder, slash, file = row.rpartition(b"/")
            self._put(folder + slash + spoilt(file, random)[:1000], kv.value)

    def spoil(self, key: str) -> None:
        self._put(self._names.written(Name(Kind.VERSION_ROW, key)), b"garbage")

    def spoil_dead(self, key: str, task: str) -> None:
        self._put(self._names.written(Name(Kind.DEAD, key, task)), b"garbage")

    def _put(self, key: bytes, value: bytes) -> None:
        self._kv.Put(rpc.PutRequest(key=key, value=value))


class InZooKeeper:
    """The contents of each node, and a node beside it by another name."""

    def __init__(self, client: KazooClient, prefix: str) -> None:
        self._client = client
        self._layout = Layout("", prefix)

    def places(self, key: str) -> list[Place]:
        paths = [path for path in self._below(self._layout.root) if key in path.rpartition("/")[2]]
        return [(path, what) for path in sorted(paths) for what in ("value", "name")]

    def _below(self, path: str) -> Iterator[str]:
        for child in self._client.get_children(path):
            yield f"{path}/{child}"
            yield from self._below(f"{path}/{child}")

    def damage(self, place: Place, random: Random) -> None:
        path, what = place
        value, _ = self._client.get(path)
        if what == "value":
            made = spoilt(value, random)
            self._client.set(path, value[:8] + made if random.random() < 0.7 else made)
            return
        folder, _, file = path.rpartition("/")
        other = spoilt(file.encode(), random).decode("latin-1").replace("/", "%2F")
        with suppress(Exception):  # not every name can be one
            self._client.create(f"{folder}/{other[:300]}", value)

    def spoil(self, key: str) -> None:
        path = self._layout.path(Name(Kind.VERSION_ROW, key))
        self._client.set(path, self._client.get(path)[0][:8] + b"garbage")

    def spoil_dead(self, key: str, task: str) -> None:
        self._client.set(self._layout.path(Name(Kind.DEAD, key, task)), b"x")


@contextmanager
def contents_of(scheme: str, fixture: Fixture, folder: Path, prefix: str) -> Iterator[Contents]:
    """The raw contents of a store of the table, beside its back."""
    match scheme:
        case "sqlite":
            yield InSqlite(folder / "locks.db", prefix)
        case "postgresql":
            yield InPostgresql(fixture("postgresql_server").url, prefix)
        case "etcd":
            yield InEtcd(fixture("etcd_server").address, prefix)
        case "zookeeper":
            client = KazooClient(fixture("zookeeper_server").address)
            client.start()
            try:
                yield InZooKeeper(client, prefix)
            finally:
                client.stop()
                client.close()
        case _:
            yield InRedis(_clients(scheme, fixture), prefix)


def _clients(scheme: str, fixture: Fixture) -> list[Any]:
    if scheme == "redlock":
        return [node.client() for node in fixture("redis_nodes")]
    if scheme == "redis+cluster":
        first, _, _ = fixture("redis_cluster").url.partition(",")
        return [redis.RedisCluster.from_url(first.replace("+cluster", ""))]
    return [fixture("redis_server").client()]
