"""The tables of the store, in a schema of their own, and who makes them.

Each process looks once whether they are there, and makes them if its role may. Where it may not,
somebody else executes ``SCHEMA`` once, and what :func:`grants` says.
"""

from __future__ import annotations

import re

from celery_dlock.errors import ConfigurationError
from celery_dlock.stores.postgresql.connection import (
    NOT_ALLOWED,
    NOT_THERE,
    Fly,
    Refused,
    Statement,
)
from celery_dlock.stores.postgresql.functions import FUNCTIONS, NUMBER
from celery_dlock.stores.sql.tables import TABLES

SCHEMA_VERSION = 1

# Names are compared by their characters, whatever the language of the database.
_TEXT = 'TEXT COLLATE "C" NOT NULL'

_WORDS = {
    "CREATE TABLE ": "CREATE TABLE dlock.",
    " ON ": " ON dlock.",
    "TEXT NOT NULL": _TEXT,
    "INTEGER": "BIGINT",
    "BLOB": "BYTEA",
    " WITHOUT ROWID": "",
}


def _translated(statement: str) -> str:
    """*statement* of SQLite in the words of PostgreSQL."""
    for word, other in _WORDS.items():
        statement = statement.replace(word, other)
    return statement


#: Whether a table that is named without a schema may be ours, as for a role with the name dlock.
SHADOWS = """'dlock' = ANY(regexp_split_to_array(
    replace(current_setting('search_path'), '"$user"', current_user), '[", ]+'))"""

_SHADOWS = "42939"  # a reserved name

_APART = f"""DO $$ BEGIN
    IF {SHADOWS} THEN
        RAISE EXCEPTION 'the schema dlock would be in the search_path of the role %, and tables of '
            'the application among those of the lock store: ALTER ROLE % SET search_path = public, '
            'or use another role', current_user, quote_ident(current_user)
            USING ERRCODE = '{_SHADOWS}';
    END IF;
END $$"""

# Room is left in the pages of what is updated, so that an update needs no new entry in an index.
SCHEMA = (
    "CREATE SCHEMA dlock",
    _APART,
    # By the store's name a fence sees that locks and data are in one database.
    """CREATE TABLE dlock.version (
    number INTEGER NOT NULL, store TEXT NOT NULL DEFAULT gen_random_uuid())""",
    f"INSERT INTO dlock.version (number) VALUES ({SCHEMA_VERSION})",
    # Of tokens and of versions. Whoever asks has the lock of the key: so of each key the later
    # grant has the larger token.
    "CREATE SEQUENCE dlock.number",
    NUMBER,
    # One row for each grant of a key, inserted and deleted and never updated.
    f"""CREATE TABLE dlock.holder (
    prefix {_TEXT}, key {_TEXT}, token BIGINT NOT NULL DEFAULT dlock.next_number(),
    task {_TEXT}, nonce {_TEXT}, mode TEXT NOT NULL, "limit" BIGINT NOT NULL,
    slot BIGINT NOT NULL, since BIGINT NOT NULL, expires BIGINT NOT NULL, name {_TEXT},
    "where" {_TEXT}, cools BIGINT NOT NULL, replaced_by TEXT,
    PRIMARY KEY (prefix, key, token))""",
    # What has become of one that was renewed, is to give way, or met a newer limit.
    f"""CREATE TABLE dlock.lease (
    prefix {_TEXT}, key {_TEXT}, token BIGINT NOT NULL, "limit" BIGINT,
    expires BIGINT NOT NULL, replaced_by TEXT,
    PRIMARY KEY (prefix, key, token)) WITH (fillfactor = 50)""",
    # One row for each key that has more than holders. Each change of the key gives it a new number.
    f"""CREATE TABLE dlock.state (
    prefix {_TEXT}, key {_TEXT}, version BIGINT NOT NULL DEFAULT dlock.next_number(),
    grants TEXT NOT NULL, cooling TEXT NOT NULL, hold TEXT, parked BIGINT NOT NULL,
    paused BIGINT NOT NULL, due BIGINT, PRIMARY KEY (prefix, key)) WITH (fillfactor = 50)""",
    "CREATE INDEX state_due ON dlock.state (prefix, due) WHERE due IS NOT NULL",
    *map(_translated, TABLES),
    *FUNCTIONS,
)

_MADE = re.compile(r"CREATE (TABLE|SEQUENCE|FUNCTION) (dlock\.\w+)")

#: What drops all of that, and the schema if nothing else is in it.
DROPS = (
    *(f"DROP {made[1]} IF EXISTS {made[2]}" for made in map(_MADE.match, reversed(SCHEMA)) if made),
    """DO $$ BEGIN
    DROP SCHEMA IF EXISTS dlock;
EXCEPTION WHEN dependent_objects_still_exist THEN
    NULL;
END $$""",
)

#: It was made meanwhile.
_IS_THERE = frozenset({"42P06", "42P07", "42710", "23505"})

FOUND = "SELECT to_regnamespace('dlock') IS NOT NULL, to_regclass('dlock.version') IS NOT NULL"
_VERSION = Statement(b"SELECT number, store FROM dlock.version")


def grants(role: str) -> tuple[str, ...]:
    """What *role* needs if it does not own the tables."""
    name = '"' + role.replace('"', '""') + '"'
    return (
        f"GRANT USAGE ON SCHEMA dlock TO {name}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA dlock TO {name}",
        f"GRANT SELECT, UPDATE ON SEQUENCE dlock.number TO {name}",
        f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA dlock TO {name}",
    )


def missing(has_schema: bool, has_tables: bool) -> tuple[str, ...]:
    """The statements that are still to be executed, by the answer to :data:`FOUND`."""
    if has_tables:
        return ()
    return SCHEMA[1:] if has_schema else SCHEMA


def prepare(fly: Fly) -> str:
    """See to it that the tables are there, and of this version: the store's name.

    Raises :exc:`~celery_dlock.errors.ConfigurationError` where they are not, and cannot be made,
    and for a role that would take tables of the application for ours.
    """
    try:
        if table_version(fly) is None:
            _make(fly)
        ((version, store),) = fly([Statement(_APART.encode()), _VERSION])[1][0]
    except Refused as exc:
        if exc.state == _SHADOWS:
            raise ConfigurationError(str(exc).partition("\n")[0]) from exc
        raise
    if version != SCHEMA_VERSION:
        raise ConfigurationError(
            f"the schema dlock has version {version} and this release of celery-dlock reads "
            f"version {SCHEMA_VERSION}; run one release on all workers"
        )
    return str(store)


def table_version(fly: Fly) -> int | None:
    """Of which version the tables are; ``None`` if there are none."""
    try:
        ((version, _),) = fly([_VERSION])[0][0]
    except Refused as exc:
        if exc.state in NOT_THERE:
            return None
        raise
    return int(version)


def _make(fly: Fly) -> None:
    ((has_schema, has_tables),) = fly([Statement(FOUND.encode())])[0][0]
    try:
        texts = ("BEGIN READ WRITE", *missing(has_schema, has_tables), "COMMIT")
        fly([Statement(text.encode()) for text in texts])
    except Refused as exc:
        if exc.state == NOT_ALLOWED:
            raise ConfigurationError(
                "the tables of the lock store are not there, and its role may not make them: "
                "let a role that may create a schema execute what `celery -A … dlock init --sql` "
                f"prints ({exc.__cause__})"
            ) from exc
        if exc.state not in _IS_THERE:
            raise
