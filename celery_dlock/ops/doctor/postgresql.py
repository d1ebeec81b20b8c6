"""The store on PostgreSQL: what its server keeps through a power cut, and after a failover."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from celery_dlock.ops.doctor.finding import Broken, Case, Checks, Finding, Unknown, Weak, judged
from celery_dlock.ops.doctor.shared import clock_skew, measured
from celery_dlock.stores.postgresql.connection import Address, Connections, Statement, address_of
from celery_dlock.stores.postgresql.schema import (
    SCHEMA_VERSION,
    SHADOWS,
    prepare,
    table_version,
)

#: The oldest version that is tried.
OLDEST = 130000

_SETTINGS = Statement(
    f"""SELECT current_setting('server_version_num')::int, current_setting('server_version'),
    current_setting('fsync') = 'on', current_setting('synchronous_commit'),
    current_setting('synchronous_standby_names'), pg_is_in_recovery(),
    (SELECT count(*) FROM pg_stat_replication),
    has_database_privilege(current_database(), 'CREATE'),
    current_setting('default_transaction_isolation'),
    current_setting('idle_in_transaction_session_timeout'), {SHADOWS}""".encode()
)

_LACKS = Statement(
    b"""SELECT coalesce(string_agg(relname, ', ' ORDER BY relname), '')
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = relnamespace
    WHERE nspname = 'dlock' AND NOT CASE relkind
        WHEN 'r' THEN has_schema_privilege(n.oid, 'USAGE')
            AND has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
            AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE')
        WHEN 'S' THEN has_sequence_privilege(c.oid, 'SELECT')
            AND has_sequence_privilege(c.oid, 'UPDATE')
        ELSE true END"""
)

# What keeps rows that are deleted, and for how many transactions. A session in another database
# keeps none of ours, nor does a vacuum. Who has begun beside an old writer keeps as many as that.
_SNAPSHOT = Statement(
    b"""SELECT keeper, age FROM (
    SELECT format('process %s of %s, %s', pid, usename, application_name) AS keeper,
        greatest(age(backend_xmin), age(backend_xid)) AS age, backend_xid IS NULL AS reads
    FROM pg_stat_activity WHERE coalesce(datname, current_database()) = current_database()
        AND pid <> pg_backend_pid() AND pid NOT IN (SELECT pid FROM pg_stat_progress_vacuum)
    UNION ALL SELECT 'the prepared transaction ' || gid, age(transaction), false
    FROM pg_prepared_xacts WHERE database = current_database()
    UNION ALL SELECT 'the replication slot ' || slot_name, age(xmin), false
    FROM pg_replication_slots
    UNION ALL SELECT 'nobody', 0, true) AS kept
    WHERE age IS NOT NULL ORDER BY age DESC, reads LIMIT 1"""
)

#: After so many transactions a key that is taken in turn all the time is noticeably slower.
OLD = 50_000

_NUMBERS = Statement(
    b"""SELECT greatest((SELECT max(token) FROM dlock.holder),
        (SELECT max(version) FROM dlock.state), 0),
    greatest((extract(epoch FROM clock_timestamp()) * 1000000)::bigint, (SELECT last_value
        FROM pg_sequences WHERE schemaname = 'dlock' AND sequencename = 'number'))"""
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
    shadows: bool

    @property
    def waits_for_standbys(self) -> bool:
        """Whether a standby that is promoted has all that was answered."""
        return bool(self.standby_names) and self.commits not in ("local", "off")


CHECKS: Checks[Server] = {
    "postgresql-version": Unknown(
        lambda server: server.number < OLDEST and server.version,
        "version {}",
        promise="The store is not tried with this version.",
        fix="run PostgreSQL 13 or later",
    ),
    "postgresql-standby": Broken(
        lambda server: server.is_standby,
        "a standby in recovery",
        promise="It refuses writes, so no lock is ever taken.",
        fix="name the primary in the URL, or all servers with target_session_attrs=read-write",
    ),
    "postgresql-fsync": Broken(
        lambda server: not server.syncs,
        "fsync off",
        promise="A power cut may destroy the database, with all locks, messages and tokens.",
        fix="fsync = on in postgresql.conf",
    ),
    "postgresql-replication": Weak(
        lambda server: server.standbys and not server.waits_for_standbys and server,
        "{0.standbys} connected standbys, synchronous_standby_names = '{0.standby_names}', "
        "synchronous_commit = {0.commits}",
        promise="A standby that is promoted may not know who holds a key: a second task starts "
        "beside the first, with a token that is no larger, and parked messages are lost.",
        fix="set synchronous_standby_names, and synchronous_commit = on for the role",
    ),
    "postgresql-search-path": Broken(
        lambda server: server.shadows,
        "the schema dlock in the search_path of the role",
        promise="No lock is ever taken: tables of the application would be made among those of the "
        "lock store.",
        fix="ALTER ROLE … SET search_path = public, or another role",
    ),
    # What the defaults of the role mean for a fence in the same database.
    "postgresql-isolation": Weak(
        lambda server: server.isolation != "read committed" and server.isolation,
        "default_transaction_isolation = {}",
        promise="The store sets its own. But a transaction of yours that reads before it takes a "
        "lock is refused by the fence, and some fail that the database cannot serialize.",
        fix="take the lock first, or ALTER ROLE … SET default_transaction_isolation = 'read "
        "committed'",
    ),
    "postgresql-idle-in-transaction": Weak(
        lambda server: server.idle_timeout == "0",
        "idle_in_transaction_session_timeout = 0",
        promise="A process that is stopped in a fenced transaction of this database keeps its "
        "lock, after the lease has expired as well, for as long as its connection lives.",
        fix="ALTER ROLE … SET idle_in_transaction_session_timeout = '1min'",
    ),
}

#: Of what keeps deleted rows for longest, and for how many transactions.
SNAPSHOT: Checks[tuple[str, int]] = {
    "postgresql-snapshot": Weak(
        lambda oldest: oldest[1] >= OLD and oldest,
        "{0[0]} has kept deleted rows for {0[1]:,} transactions",
        promise="No row that was deleted since can be removed, in the whole database. A key "
        "that is taken often becomes slower all the time: to take it may cost 30 ms after an hour.",
        fix="end the session or the prepared transaction, drop the slot, or let reports and dumps "
        "read a replica without hot_standby_feedback",
    )
}

#: Of the largest number that was drawn, and the one after which the next one is.
NUMBERS: Checks[tuple[int, int]] = {
    "postgresql-tokens": Broken(
        lambda numbers: numbers[0] > numbers[1] and numbers,
        "token {0[0]} was issued, and the next one is {0[1]}",
        promise="The sequence has been set back, as by a logical replication or a backup, and the "
        "server's clock as well. Fenced tables refuse whoever gets a lock now, and not those who "
        "held it before.",
        fix="raise dlock_fencing_epoch by one, and correct the clock",
    )
}

#: Of the version of the tables, if they are there, and whether our role may make them.
TABLES: Checks[tuple[int | None, bool]] = {
    "postgresql-tables": (
        Weak(
            lambda tables: tables == (None, True),
            "no table dlock.version",
            promise="The first process that takes a lock makes the tables. If the workers' role is "
            "another one, which may not, no lock is ever taken.",
            fix="celery -A shop dlock init",
        ),
        Broken(
            lambda tables: tables == (None, False),
            "no table dlock.version, and no right to CREATE in the database",
            promise="No lock is ever taken: the tables are not there, and this role may not make "
            "them.",
            fix="celery -A shop dlock init --sql, executed by a role that may create a schema",
        ),
        Broken(
            lambda tables: tables[0] not in (None, SCHEMA_VERSION) and tables,
            f"version {{0[0]}}; this release reads version {SCHEMA_VERSION}",
            promise="No lock is ever taken: the tables are those of another release.",
            fix="run one release on all workers",
        ),
    )
}

#: The tables on which our role lacks a right.
RIGHTS: Checks[str] = {
    "postgresql-rights": Broken(
        lambda lacks: lacks,
        "no right to use {} of the schema dlock",
        promise="No lock is ever taken: another role has made the tables.",
        fix="celery -A shop dlock init --sql --role …: let the owner of the schema execute its "
        "lines with GRANT",
    )
}

CLOCK = clock_skew(
    "Its clock says when a lease ends; a holder counts by its own. A clock that runs too fast ends "
    "leases early: a second task starts beside the first."
)


def examine_postgresql(case: Case) -> Iterator[Finding]:
    """``postgresql://``."""
    yield from _examine(case, address_of)


def examine_django(case: Case) -> Iterator[Finding]:
    """``django://``."""
    from celery_dlock.django.store import address_of_alias  # which needs Django

    yield from _examine(case, address_of_alias)


def _examine(case: Case, address_of: Callable[..., Address]) -> Iterator[Finding]:
    address = partial(address_of, case.settings.url, case.settings.backend_options)
    place = f"store {address()[1]}"
    with closing(Connections(address, prepare)) as connections:

        def row(statement: Statement) -> Any:
            return connections.fly_unprepared([statement])[0][0][0]

        server = Server(*row(_SETTINGS))
        yield from judged(CHECKS, server, place)
        (lacks,) = row(_LACKS)
        yield from judged(RIGHTS, lacks, place)
        yield from judged(SNAPSHOT, row(_SNAPSHOT), place)
        if not lacks:
            version = table_version(connections.fly_unprepared)
            yield from judged(TABLES, (version, server.may_create), place)
            if version == SCHEMA_VERSION:
                yield from judged(NUMBERS, row(_NUMBERS), place)
        offset = measured(case.clock, lambda: float(row(_TIME)[0]) / 1e6)
        yield from judged(CLOCK, offset, place)
