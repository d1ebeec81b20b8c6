"""Transactions on a PostgreSQL server: who waits for which key, on which connection, until when.

A key is locked by an advisory lock of the transaction, so it needs no row of its own and goes with
the connection. As many connections are open as there are transactions at the same time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from hashlib import blake2b
from typing import Any

import psycopg
from psycopg.abc import Buffer
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.string import StrDumper, TextLoader

from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.stores.sql.rows import Cursor
from celery_dlock.stores.unreadable import NONSENSE, UnreadableKey

SCHEMA_VERSION = 1

#: How long a connection may take, in libpq's words; the URL and the driver's options override them.
LIMITS: Mapping[str, Any] = {
    "connect_timeout": 2,  # seconds
    "tcp_user_timeout": 5000,  # milliseconds
    "keepalives_idle": 5,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "application_name": "celery-dlock",
    "client_encoding": "UTF8",
}

#: A client that vanished within a transaction keeps others from its keys for five seconds; who
#: waits behind it, and behind others that do, waits for longer.
SESSION = """
SET search_path TO dlock;
SET lock_timeout TO '15s';
SET statement_timeout TO '15s';
SET idle_in_transaction_session_timeout TO '5s';
SELECT set_config('synchronous_commit', 'on', false)
WHERE current_setting('synchronous_commit') = 'off'"""

#: Taken by whoever makes the tables.
MAKING = 0x646C636B

# Names are compared by their characters, whatever the language of the database.
SCHEMA = f"""
CREATE SCHEMA dlock;
SET LOCAL search_path TO dlock;
CREATE TABLE version (number INTEGER NOT NULL);
INSERT INTO version VALUES ({SCHEMA_VERSION});
CREATE DOMAIN exact AS TEXT COLLATE "C" NOT NULL;
-- Asked for by whoever has locked a key: of each key the later grant has the larger token.
CREATE SEQUENCE token;
CREATE TABLE state (
    prefix exact, key exact, holders TEXT NOT NULL, grants TEXT NOT NULL, cooling TEXT NOT NULL,
    hold TEXT, parked BIGINT NOT NULL, paused BIGINT NOT NULL, due BIGINT,
    PRIMARY KEY (prefix, key));
CREATE INDEX state_due ON state (prefix, due) WHERE due IS NOT NULL;
CREATE TABLE waiting (
    prefix exact, key exact, task exact, mode TEXT NOT NULL, "limit" BIGINT NOT NULL,
    rank BIGINT NOT NULL, arrived BIGINT NOT NULL, expires BIGINT, gives_up BIGINT,
    ordered BOOLEAN NOT NULL, makes_room_for TEXT, PRIMARY KEY (prefix, key, task));
CREATE INDEX waiting_rank ON waiting (prefix, key, rank);
CREATE INDEX waiting_expires ON waiting (prefix, key, expires) WHERE expires IS NOT NULL;
CREATE TABLE message (
    prefix exact, key exact, task exact, body BYTEA NOT NULL, PRIMARY KEY (prefix, key, task));
CREATE INDEX message_task ON message (prefix, task);
CREATE TABLE dead (
    prefix exact, key exact, task exact, mode TEXT NOT NULL, "limit" BIGINT NOT NULL,
    cause TEXT NOT NULL, at BIGINT NOT NULL, body BYTEA NOT NULL,
    PRIMARY KEY (prefix, key, task));
CREATE INDEX dead_at ON dead (prefix, at, key, task);
CREATE INDEX dead_task ON dead (prefix, task);
CREATE TABLE past (
    prefix exact, key exact, task exact, done INTEGER, lost BIGINT NOT NULL, until BIGINT NOT NULL,
    PRIMARY KEY (prefix, key, task, done));
CREATE INDEX past_until ON past (until);
CREATE TABLE bar (prefix exact, key exact, token BIGINT NOT NULL, PRIMARY KEY (prefix, key));
CREATE TABLE note (
    prefix exact, key exact, name exact, body BYTEA NOT NULL, PRIMARY KEY (prefix, key, name));
CREATE TABLE swap (
    prefix exact, name exact, body BYTEA NOT NULL, until BIGINT NOT NULL,
    PRIMARY KEY (prefix, name));
CREATE INDEX swap_until ON swap (until)
"""

_NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


class Lost(BackendUnavailable):
    """The connection is gone, and with it the answer: it may have happened or not."""


class Elsewhere(BackendUnavailable):
    """Somebody else is writing to the key."""


class NameDumper(StrDumper):
    """PostgreSQL has no character 0: it and the next one become two, and the order stays."""

    def dump(self, obj: str) -> Buffer | None:
        return super().dump(obj.replace("\1", "\1\2").replace("\0", "\1\1"))


class NameLoader(TextLoader):
    def load(self, data: Buffer) -> str:
        return str(super().load(data)).replace("\1\1", "\0").replace("\1\2", "\1")


class Connection:
    """One connection, with ``?`` for the values of a statement."""

    def __init__(self, address: str) -> None:
        self._connection = psycopg.connect(address, autocommit=True)
        self._connection.adapters.register_dumper(str, NameDumper)
        self._connection.adapters.register_loader("text", NameLoader)
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def execute(self, statement: str, values: tuple[Any, ...] = (), /) -> Cursor:
        return self._connection.execute(_marked(statement), values or None)

    def begin(self, locks: list[int], *, wait: bool) -> int:
        """Have the *locks*, or read only; the time by the server's clock when that was done."""
        if not locks:
            self.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            return int(self.execute(f"SELECT {_NOW}").fetchone()[0])
        self.execute("BEGIN")
        take = "pg_advisory_xact_lock" if wait else "pg_try_advisory_xact_lock"
        rows = self.execute(
            f"SELECT {take}(lock)::text, {_NOW} FROM unnest(?::bigint[]) AS lock", (locks,)
        ).fetchall()
        if any(taken == "false" for taken, _ in rows):
            raise Elsewhere("somebody else is writing to this key")
        return int(rows[-1][1])

    @property
    def broken(self) -> bool:
        return self._connection.broken

    def close(self) -> None:
        self._connection.close()

    def _prepare(self) -> None:
        self.execute(SESSION)
        with self._connection.transaction():
            if not self._is_there():
                self.execute("SELECT pg_advisory_xact_lock(?)", (MAKING,))  # several may be first
                if not self._is_there():
                    self.execute(SCHEMA)
            (version,) = self.execute("SELECT number FROM dlock.version").fetchone()
        if version != SCHEMA_VERSION:
            raise ConfigurationError(
                f"the schema dlock has version {version} and this release of celery-dlock reads "
                f"version {SCHEMA_VERSION}; run one release on all workers"
            )

    def _is_there(self) -> bool:
        return self.execute("SELECT to_regclass('dlock.version')").fetchone()[0] is not None


class Connections:
    """Those of one process to one server; the last one that was used is used first."""

    def __init__(self, address: str, place: str) -> None:
        self._address = address
        self._place = place
        self._idle: deque[Connection] = deque()  # its ends are safe to use from any thread

    @contextmanager
    def transaction(
        self, prefix: str, keys: Collection[str], *, wait: bool
    ) -> Iterator[tuple[Connection, int]]:
        """Within *keys* are locked; it is committed at the end. And the time on the server."""
        locks = sorted({_lock(prefix, key) for key in keys})  # in one order: nobody waits in a ring
        with self._translated():
            connection, now = self._begun(locks, wait)
            try:
                yield connection, now
                connection.execute("COMMIT")
            except BaseException as exc:
                lost = connection.broken and isinstance(exc, psycopg.Error)
                connection.close()  # what it was doing, and the answer to that, go with it
                if lost:
                    raise Lost(self._said(exc)) from exc
                raise
            self._idle.append(connection)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _begun(self, locks: list[int], wait: bool) -> tuple[Connection, int]:
        """A connection that idled may be gone; nothing has been asked of it yet."""
        while True:
            try:
                connection, fresh = self._idle.pop(), False
            except IndexError:
                connection, fresh = Connection(self._address), True
            try:
                return connection, connection.begin(locks, wait=wait)
            except BaseException as exc:
                idled = connection.broken and isinstance(exc, psycopg.Error) and not fresh
                connection.close()
                if not idled:
                    raise

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as exc:
            raise BackendUnavailable(self._said(exc)) from exc
        except NONSENSE as exc:
            text = f"PostgreSQL at {self._place} has rows that cannot be read: {exc!r}"
            raise UnreadableKey(text) from exc

    def _said(self, error: BaseException) -> str:
        return f"PostgreSQL at {self._place}: {str(error).strip()}"


def connections_of(url: str, driver: Mapping[str, Any]) -> Connections:
    """Those to the server at *url*, with libpq's options *driver*; none is made yet.

    Raises :exc:`~celery_dlock.errors.ConfigurationError`.
    """
    try:
        told = conninfo_to_dict(url, **driver)
        address = make_conninfo(**{**LIMITS, **told})
    except psycopg.Error:  # it may quote a password
        raise ConfigurationError(
            "the URL of the lock store is not of the form postgresql://[user[:password]@]host[:port]"
            "/database, or it or dlock_backend_options have what libpq does not know"
        ) from None
    host, database = told.get("host", "localhost"), told.get("dbname", "its default database")
    return Connections(address, f"{host}:{told.get('port', 5432)}/{database}")


def _lock(prefix: str, key: str) -> int:
    """The number of a key's lock. Two keys with the same one wait for each other, and no more."""
    name = f"{len(prefix)} {prefix}{key}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(name, digest_size=8).digest(), signed=True)


@cache
def _marked(statement: str) -> Any:
    """*statement* in psycopg's words, whose type would have it a literal."""
    return statement.replace("?", "%s")
