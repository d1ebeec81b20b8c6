"""The fence where locks and data are in one PostgreSQL database: the holder's own row.

A transaction that has locked it keeps the lock held: neither a release nor a takeover deletes a row
in use, and nobody waits for it. So no newer holder has begun before that transaction has ended, and
nothing has to be written for that. A renewal touches another row.

Whether it is the store's database is asked over the connection that writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from celery_dlock.core.lease import RowOf, Term
from celery_dlock.errors import ConfigurationError, StaleFencingToken
from celery_dlock.fencing.guard import Guard, Values
from celery_dlock.fencing.statements import POSTGRESQL

# A catalog does not refuse to be read; an error would end the caller's transaction.
_LOOK = """
SELECT has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(v.oid, 'SELECT')
    AND has_table_privilege(h.oid, 'SELECT') AND has_table_privilege(h.oid, 'UPDATE, DELETE')
FROM pg_catalog.pg_namespace n
JOIN pg_catalog.pg_class v ON v.relnamespace = n.oid AND v.relname = 'version'
JOIN pg_catalog.pg_class h ON h.relnamespace = n.oid AND h.relname = 'holder'
WHERE n.nspname = 'dlock'
"""

_STORE = "SELECT store FROM dlock.version"

_KEEP = """
SELECT token FROM dlock.holder WHERE prefix = :prefix AND key = :key AND token = :token
    AND task = :task AND nonce = :nonce FOR KEY SHARE
"""


def keep_rows(guard: Guard, terms: Sequence[Term], row_of: RowOf) -> bool:
    """Keep the rows of *terms* until the transaction ends, if the database of *guard* has them.

    Whether it has. Raises :exc:`~celery_dlock.StaleFencingToken` for one that is not there any
    more, and :exc:`~celery_dlock.ConfigurationError` where the role may not lock it: the tables
    would not do instead, for whoever may would not look at them.
    """
    if guard.dialect is not POSTGRESQL:
        return False
    rows = {term: row for term in terms if (row := row_of(term.claim)) is not None}
    store = _store_in(guard) if rows else None
    if store is None or not all(row.is_in(store) for row in rows.values()):
        return False
    for term, row in rows.items():
        texts = {"prefix": row.prefix, "key": row.key, "task": row.task, "nonce": row.nonce}
        if _first(guard, _KEEP, {**texts, "token": term.issued}) is None:
            raise StaleFencingToken(term.resource, term.token, 0)
    return True


def _store_in(guard: Guard) -> str | None:
    """The name of the store whose tables are in the database of *guard*; ``None`` if none are."""
    may_lock = _first(guard, _LOOK)
    if may_lock is None:
        return None
    if not may_lock:
        raise ConfigurationError(
            "the lock may be in this very database, and its role may not lock the holder's row: "
            "GRANT USAGE ON SCHEMA dlock, GRANT SELECT ON dlock.version, and GRANT SELECT, UPDATE "
            "ON dlock.holder to it"
        )
    name: str | None = _first(guard, _STORE)
    return name


def _first(guard: Guard, statement: str, values: Values | None = None) -> Any:
    with closing(guard.execute(statement, values or {})) as cursor:
        row = cursor.fetchone()
    return None if row is None else row[0]
