"""The store on PostgreSQL: what its server keeps through a power cut, and after a failover."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from celery_dlock.ops.doctor.finding import Case, Finding, measured, on_time
from celery_dlock.stores.postgresql.connection import Connections, Statement, address_of
from celery_dlock.stores.postgresql.schema import SCHEMA_VERSION, prepare, table_version

#: The oldest version that is tried.
OLDEST = 130000

CLOCK = (
    "Its clock says when a lease ends; a holder counts by its own. A clock that runs too fast ends "
    "leases early: a second task starts beside the first."
)

_SETTINGS = Statement(
    b"""SELECT current_setting('server_version_num')::int, current_setting('server_version'),
    current_setting('fsync') = 'on', current_setting('synchronous_commit'),
    current_setting('synchronous_standby_names'), pg_is_in_recovery(),
    (SELECT count(*) FROM pg_stat_replication),
    has_database_privilege(current_database(), 'CREATE'),
    current_setting('default_transaction_isolation'),
    current_setting('idle_in_transaction_session_timeout')"""
)

_TIME = Statement(b"SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")


@dataclass(frozen=True, slots=True)
class Server:
    """What a server says of itself, and whether our role may make the tables that it *lacks*."""

    number: int
    version: str
    syncs: bool
    commits: str
    standby_names: str
    is_standby: bool
    standbys: int
    may_create: bool
    isolation: str
    idle_timeout: str


def examine_postgresql(case: Case) -> Iterator[Finding]:
    """``postgresql://``."""
    yield from _examine(case, *address_of(case.settings.url, case.settings.backend_options))


def examine_django(case: Case) -> Iterator[Finding]:
    """``django://``."""
    from celery_dlock.django.store import address_of_alias  # which needs Django

    yield from _examine(case, *address_of_alias(case.settings.url, case.settings.backend_options))


def _examine(case: Case, address: str, place: str) -> Iterator[Finding]:
    where = f"store {place}"
    with closing(Connections(address, place, prepare)) as connections:
        server = Server(*connections.fly_unprepared([_SETTINGS])[0][0][0])
        yield from findings_of(server, where)
        yield from _tables(connections, server, where)
        offset = measured(
            case.clock, lambda: _seconds(connections.fly_unprepared([_TIME])[0][0][0])
        )
        yield from on_time(offset, where, CLOCK)


def findings_of(server: Server, where: str) -> Iterator[Finding]:
    """What is wrong with *server*."""
    if server.number < OLDEST:
        yield Finding(
            "postgresql-version",
            "unknown",
            where,
            promise="The store is not tried with this version.",
            found=f"version {server.version}",
            fix="run PostgreSQL 13 or later",
        )
    if server.is_standby:
        yield Finding(
            "postgresql-standby",
            "broken",
            where,
            promise="It refuses writes, so no lock is ever taken.",
            found="a standby in recovery",
            fix="name the primary in the URL, or all servers with target_session_attrs=read-write",
        )
    if not server.syncs:
        yield Finding(
            "postgresql-fsync",
            "broken",
            where,
            promise="A power cut may destroy the database, with all locks, messages and tokens.",
            found="fsync off",
            fix="fsync = on in postgresql.conf",
        )
    yield from _replication(server, where)
    yield from _fence(server, where)


def _replication(server: Server, where: str) -> Iterator[Finding]:
    """Whether a standby that is promoted has all that was answered."""
    waits = server.standby_names and server.commits not in ("local", "off")
    if server.standbys and not waits:
        yield Finding(
            "postgresql-replication",
            "weak",
            where,
            promise="A standby that is promoted may not know who holds a key: a second task starts "
            "beside the first, with a token that is no larger, and parked messages are lost.",
            found=f"{server.standbys} connected standbys, synchronous_standby_names = "
            f"'{server.standby_names}', synchronous_commit = {server.commits}",
            fix="set synchronous_standby_names, and synchronous_commit = on for the role",
        )


def _fence(server: Server, where: str) -> Iterator[Finding]:
    """What the defaults of the role mean for a fence in the same database."""
    if server.isolation != "read committed":
        yield Finding(
            "postgresql-isolation",
            "weak",
            where,
            promise="The store sets its own. But a transaction of yours that reads before it takes "
            "a lock is refused by the fence, and some fail that the database cannot serialize.",
            found=f"default_transaction_isolation = {server.isolation}",
            fix="take the lock first, or ALTER ROLE … SET default_transaction_isolation = 'read "
            "committed'",
        )
    if server.idle_timeout == "0":
        yield Finding(
            "postgresql-idle-in-transaction",
            "weak",
            where,
            promise="A process that is stopped in a fenced transaction of this database keeps its "
            "lock, after the lease has expired as well, for as long as its connection lives.",
            found="idle_in_transaction_session_timeout = 0",
            fix="ALTER ROLE … SET idle_in_transaction_session_timeout = '1min'",
        )


def _tables(connections: Connections, server: Server, where: str) -> Iterator[Finding]:
    version = table_version(connections.fly_unprepared)
    if version is None and server.may_create:
        yield Finding(
            "postgresql-tables",
            "weak",
            where,
            promise="The first process that takes a lock makes the tables. If the workers' role is "
            "another one, which may not, no lock is ever taken.",
            found="no table dlock.version",
            fix="celery -A shop dlock init",
        )
    elif version is None:
        yield Finding(
            "postgresql-tables",
            "broken",
            where,
            promise="No lock is ever taken: the tables are not there, and this role may not make "
            "them.",
            found="no table dlock.version, and no right to CREATE in the database",
            fix="celery -A shop dlock init --sql, executed by a role that may create a schema",
        )
    elif version != SCHEMA_VERSION:
        yield Finding(
            "postgresql-tables",
            "broken",
            where,
            promise="No lock is ever taken: the tables are those of another release.",
            found=f"version {version}; this release reads version {SCHEMA_VERSION}",
            fix="run one release on all workers",
        )


def _seconds(row: tuple[Any, ...]) -> float:
    return float(row[0]) / 1e6
