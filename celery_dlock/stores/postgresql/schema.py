"""The tables of the store, in a schema of their own, and who makes them.

Each process looks once whether they are there, and makes them if its role may. Where it may not,
somebody else executes ``SCHEMA`` once, and what :func:`grants` says.
"""

from __future__ import annotations

from celery_dlock.errors import ConfigurationError
from celery_dlock.stores.postgresql.connection import NOT_THERE, Fly, Refused, Statement

SCHEMA_VERSION = 1

# Names are compared by their characters, whatever the language of the database. Room is left in the
# pages of what is updated, so that an update needs no new entry in an index.
SCHEMA = (
    "CREATE SCHEMA dlock",
    'CREATE DOMAIN dlock.exact AS TEXT COLLATE "C" NOT NULL',
    # By the store's name a fence sees that locks and data are in one database.
    """CREATE TABLE dlock.version (
    number INTEGER NOT NULL, store TEXT NOT NULL DEFAULT gen_random_uuid())""",
    f"INSERT INTO dlock.version (number) VALUES ({SCHEMA_VERSION})",
    # Of tokens and of versions. Whoever asks has the lock of the key: so of each key the later
    # grant has the larger token.
    "CREATE SEQUENCE dlock.number",
    # One row for each grant of a key, inserted and deleted and never updated.
    """CREATE TABLE dlock.holder (
    prefix dlock.exact, key dlock.exact, token BIGINT NOT NULL DEFAULT nextval('dlock.number'),
    task dlock.exact, nonce dlock.exact, mode TEXT NOT NULL, "limit" BIGINT NOT NULL,
    slot BIGINT NOT NULL, since BIGINT NOT NULL, expires BIGINT NOT NULL, name dlock.exact,
    "where" dlock.exact, cools BIGINT NOT NULL, replaced_by TEXT,
    PRIMARY KEY (prefix, key, token))""",
    # What has become of the lease of one that was renewed, or that is to give way.
    """CREATE TABLE dlock.lease (
    prefix dlock.exact, key dlock.exact, token BIGINT NOT NULL, expires BIGINT NOT NULL,
    replaced_by TEXT, PRIMARY KEY (prefix, key, token)) WITH (fillfactor = 50)""",
    # One row for each key that has more than holders. Each change of the key gives it a new number.
    """CREATE TABLE dlock.state (
    prefix dlock.exact, key dlock.exact, version BIGINT NOT NULL DEFAULT nextval('dlock.number'),
    grants TEXT NOT NULL, cooling TEXT NOT NULL, hold TEXT, parked BIGINT NOT NULL,
    paused BIGINT NOT NULL, due BIGINT, PRIMARY KEY (prefix, key)) WITH (fillfactor = 50)""",
    "CREATE INDEX state_due ON dlock.state (prefix, due) WHERE due IS NOT NULL",
    """CREATE TABLE dlock.waiting (
    prefix dlock.exact, key dlock.exact, task dlock.exact, mode TEXT NOT NULL,
    "limit" BIGINT NOT NULL, rank BIGINT NOT NULL, arrived BIGINT NOT NULL, expires BIGINT,
    gives_up BIGINT, ordered BOOLEAN NOT NULL, makes_room_for TEXT,
    PRIMARY KEY (prefix, key, task))""",
    "CREATE INDEX waiting_rank ON dlock.waiting (prefix, key, rank)",
    """CREATE INDEX waiting_expires ON dlock.waiting (prefix, key, expires)
    WHERE expires IS NOT NULL""",
    """CREATE TABLE dlock.message (
    prefix dlock.exact, key dlock.exact, task dlock.exact, body BYTEA NOT NULL,
    PRIMARY KEY (prefix, key, task))""",
    "CREATE INDEX message_task ON dlock.message (prefix, task)",
    """CREATE TABLE dlock.dead (
    prefix dlock.exact, key dlock.exact, task dlock.exact, mode TEXT NOT NULL,
    "limit" BIGINT NOT NULL, cause TEXT NOT NULL, at BIGINT NOT NULL, body BYTEA NOT NULL,
    PRIMARY KEY (prefix, key, task))""",
    "CREATE INDEX dead_at ON dlock.dead (prefix, at, key, task)",
    "CREATE INDEX dead_task ON dlock.dead (prefix, task)",
    """CREATE TABLE dlock.past (
    prefix dlock.exact, key dlock.exact, task dlock.exact, done INTEGER NOT NULL,
    lost BIGINT NOT NULL, until BIGINT NOT NULL, PRIMARY KEY (prefix, key, task, done))""",
    "CREATE INDEX past_until ON dlock.past (until)",
    """CREATE TABLE dlock.bar (
    prefix dlock.exact, key dlock.exact, token BIGINT NOT NULL, PRIMARY KEY (prefix, key))""",
    """CREATE TABLE dlock.note (
    prefix dlock.exact, key dlock.exact, name dlock.exact, body BYTEA NOT NULL,
    PRIMARY KEY (prefix, key, name))""",
    """CREATE TABLE dlock.swap (
    prefix dlock.exact, name dlock.exact, body BYTEA NOT NULL, until BIGINT NOT NULL,
    PRIMARY KEY (prefix, name))""",
    "CREATE INDEX swap_until ON dlock.swap (until)",
)

_NOT_ALLOWED = "42501"

#: It was made meanwhile.
_IS_THERE = frozenset({"42P06", "42P07", "42710", "23505"})

_LOOK = Statement(b"SELECT to_regnamespace('dlock')::text")
_VERSION = Statement(b"SELECT number FROM dlock.version")
_STORE = Statement(b"SELECT store FROM dlock.version")


def grants(role: str) -> tuple[str, ...]:
    """What *role* needs if it does not own the tables."""
    name = '"' + role.replace('"', '""') + '"'
    return (
        f"GRANT USAGE ON SCHEMA dlock TO {name}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA dlock TO {name}",
        f"GRANT USAGE ON SEQUENCE dlock.number TO {name}",
    )


def prepare(fly: Fly) -> str:
    """See to it that the tables are there, and of this version: the store's name.

    Raises :exc:`~celery_dlock.errors.ConfigurationError` where they are not, and cannot be made.
    """
    version = table_version(fly)
    if version is None:
        _make(fly)
        version = table_version(fly)
    if version != SCHEMA_VERSION:
        raise ConfigurationError(
            f"the schema dlock has version {version} and this release of celery-dlock reads "
            f"version {SCHEMA_VERSION}; run one release on all workers"
        )
    return str(fly([_STORE])[0][0][0][0])


def table_version(fly: Fly) -> int | None:
    """Of which version the tables are; ``None`` if there are none."""
    try:
        ((version,),) = fly([_VERSION])[0][0]
    except Refused as exc:
        if exc.state in NOT_THERE:
            return None
        raise
    return int(version)


def _make(fly: Fly) -> None:
    ((schema,),) = fly([_LOOK])[0][0]
    statements = SCHEMA if schema is None else SCHEMA[1:]
    try:
        texts = ("BEGIN READ WRITE", *statements, "COMMIT")
        fly([Statement(text.encode()) for text in texts])
    except Refused as exc:
        if exc.state == _NOT_ALLOWED:
            raise ConfigurationError(
                "the tables of the lock store are not there, and its role may not make them: "
                "let a role that may create a schema execute what `celery -A … dlock init --sql` "
                f"prints ({exc})"
            ) from exc
        if exc.state not in _IS_THERE:
            raise
