"""The statements of the fence, in each dialect of SQL; each answers with one number.

**raise** lifts the stored token where it is smaller and answers with the token that stands then;
or with 0, if that is the very number asked for, under another owner's name. One statement that
reads and writes what is newest, waits for whoever is writing the row, and holds it until the end
of the transaction: a ``SELECT`` before it could be of an old snapshot.

**claim** answers with 1 if the effect is new, and else with more, or with no row. **mint** counts
up and answers with what it has counted.

MySQL has no ``RETURNING``, and its number of affected rows means something else under
``CLIENT.FOUND_ROWS``, which SQLAlchemy and Django set. ``LAST_INSERT_ID(number)`` comes back with
the reply of the same statement. Its assignments are evaluated from left to right, so that *owner*
is compared with the old token. What it is given on a row that is there depends on a column, which
keeps an optimizer from evaluating it beforehand.

Names compare as what they are: no collation that takes ``a`` for ``A``, no trailing space ignored,
no character set of a connection in between (hence ``UNHEX``), and in PostgreSQL no index that an
update of the C library puts out of order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery_dlock.errors import ConfigurationError

FENCE_TABLE = "dlock_fence"
ONCE_TABLE = "dlock_once"

#: Bytes of UTF-8 that a name may have: what each of the databases has room for in an index.
LONGEST_NAME = 1024


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one kind of database is spoken to. Statements have named parameters, ``:resource``."""

    schema: tuple[str, ...]
    raise_: str
    claim: str
    mint: str
    #: The number in a reply, from the cursor that executed the statement.
    answer: Callable[[Any], Any]
    #: How a text is handed over.
    text: Callable[[str], str]
    #: Whether a driver's error says that a table is missing.
    is_missing_table: Callable[[BaseException], bool]


def _first_column(cursor: Any) -> Any:
    row = cursor.fetchone()
    return None if row is None else row[0]


_RAISE = f"""
INSERT INTO {FENCE_TABLE} (resource, token, owner) VALUES (:resource, :token, :owner)
ON CONFLICT (resource) DO UPDATE SET
    owner = CASE WHEN {FENCE_TABLE}.token < excluded.token
                 THEN excluded.owner ELSE {FENCE_TABLE}.owner END,
    token = CASE WHEN {FENCE_TABLE}.token < excluded.token
                 THEN excluded.token ELSE {FENCE_TABLE}.token END
RETURNING CASE WHEN token = :token AND owner <> :owner THEN 0 ELSE token END
"""
_CLAIM = f"""
INSERT INTO {ONCE_TABLE} (resource, effect_id) VALUES (:resource, :effect_id)
ON CONFLICT (resource, effect_id) DO NOTHING RETURNING 1
"""
_MINT = f"""
INSERT INTO {FENCE_TABLE} (resource, token, owner) VALUES (:resource, 1, :owner)
ON CONFLICT (resource) DO UPDATE SET token = {FENCE_TABLE}.token + 1, owner = excluded.owner
RETURNING token
"""

SQLITE = Dialect(
    schema=(
        f"CREATE TABLE IF NOT EXISTS {FENCE_TABLE} ("
        "resource TEXT NOT NULL PRIMARY KEY, token INTEGER NOT NULL, owner TEXT NOT NULL)",
        f"CREATE TABLE IF NOT EXISTS {ONCE_TABLE} ("
        "resource TEXT NOT NULL, effect_id TEXT NOT NULL, "
        "claimed_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, "
        "PRIMARY KEY (resource, effect_id))",
    ),
    raise_=_RAISE,
    claim=_CLAIM,
    mint=_MINT,
    answer=_first_column,
    text=str,
    is_missing_table=lambda exc: str(exc).startswith("no such table: "),
)


def _unless_found(table: str, columns: str) -> str:
    """A schema that is made later, and comes earlier in search_path, gets no second table."""
    return (
        f"DO $$ BEGIN IF to_regclass('{table}') IS NULL THEN "
        f"CREATE TABLE IF NOT EXISTS {table} ({columns}); END IF; END $$"
    )


POSTGRESQL = Dialect(
    schema=(
        _unless_found(
            FENCE_TABLE,
            'resource TEXT COLLATE "C" NOT NULL PRIMARY KEY, token BIGINT NOT NULL, '
            'owner TEXT COLLATE "C" NOT NULL',
        ),
        _unless_found(
            ONCE_TABLE,
            'resource TEXT COLLATE "C" NOT NULL, effect_id TEXT COLLATE "C" NOT NULL, '
            "claimed_at TIMESTAMPTZ NOT NULL DEFAULT CURRENT_TIMESTAMP, "
            "PRIMARY KEY (resource, effect_id)",
        ),
    ),
    raise_=_RAISE,
    claim=_CLAIM,
    mint=_MINT,
    answer=_first_column,
    text=str,
    # psycopg 2 has the same under an older name
    is_missing_table=lambda exc: (
        "42P01" in (getattr(exc, "sqlstate", None), getattr(exc, "pgcode", None))
    ),
)

MYSQL = Dialect(
    schema=(
        f"CREATE TABLE IF NOT EXISTS {FENCE_TABLE} ("
        f"resource VARBINARY({LONGEST_NAME}) NOT NULL PRIMARY KEY, token BIGINT NOT NULL, "
        f"owner VARBINARY({LONGEST_NAME}) NOT NULL) ENGINE=InnoDB ROW_FORMAT=DYNAMIC",
        f"CREATE TABLE IF NOT EXISTS {ONCE_TABLE} ("
        f"resource VARBINARY({LONGEST_NAME}) NOT NULL, "
        f"effect_id VARBINARY({LONGEST_NAME}) NOT NULL, "
        "claimed_at DATETIME NOT NULL DEFAULT (UTC_TIMESTAMP), "
        "PRIMARY KEY (resource, effect_id)) ENGINE=InnoDB ROW_FORMAT=DYNAMIC",
    ),
    raise_=f"""
INSERT INTO {FENCE_TABLE} (resource, token, owner)
VALUES (UNHEX(:resource), LAST_INSERT_ID(:token), UNHEX(:owner))
ON DUPLICATE KEY UPDATE
    owner = IF(token < :token, UNHEX(:owner), owner),
    token = GREATEST(token, :token) + 0 * LAST_INSERT_ID(
        IF(token = :token AND owner <> UNHEX(:owner), 0, GREATEST(token, :token)))
""",
    claim=f"""
INSERT INTO {ONCE_TABLE} (resource, effect_id)
VALUES (UNHEX(:resource), IF(LAST_INSERT_ID(1), UNHEX(:effect_id), NULL))
ON DUPLICATE KEY UPDATE effect_id = IF(LAST_INSERT_ID(1 + LENGTH(effect_id)), effect_id, NULL)
""",
    mint=f"""
INSERT INTO {FENCE_TABLE} (resource, token, owner)
VALUES (UNHEX(:resource), LAST_INSERT_ID(1), UNHEX(:owner))
ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(token + 1), owner = UNHEX(:owner)
""",
    answer=lambda cursor: cursor.lastrowid,
    text=lambda text: text.encode().hex(),
    is_missing_table=lambda exc: bool(exc.args) and exc.args[0] == 1146,
)

_DIALECTS = {"sqlite": SQLITE, "postgresql": POSTGRESQL, "mysql": MYSQL, "mariadb": MYSQL}


def dialect(name: str) -> Dialect:
    """By the name that SQLAlchemy and Django have for it."""
    if name not in _DIALECTS:
        raise ConfigurationError(f"the fence knows {', '.join(_DIALECTS)}, and not {name}")
    return _DIALECTS[name]
