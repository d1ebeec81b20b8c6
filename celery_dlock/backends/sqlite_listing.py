"""The keys in the SQLite file, page by page.

A queue has many rows under one key. So a query steps from key to key through the index: a page
costs the same whatever waits, and holds up the writers of the file only for as long.
"""

from __future__ import annotations

import sqlite3

from celery_dlock.backends.base import KeyPage
from celery_dlock.backends.listing import page

HELD = "SELECT key FROM guard WHERE prefix=:prefix AND key>=:first ORDER BY key LIMIT :limit"

DISTINCT = """WITH RECURSIVE found(key) AS (
    SELECT min(key) FROM {table} WHERE prefix=:prefix AND key>=:first
    UNION ALL
    SELECT (SELECT min(key) FROM {table} WHERE prefix=:prefix AND key>found.key)
    FROM found WHERE found.key IS NOT NULL)
SELECT key FROM found WHERE key IS NOT NULL LIMIT :limit"""

#: Keys with messages, which are kept apart, and keys for which places are kept, too.
WITH_MESSAGE = DISTINCT.format(table="message")
WAITED_FOR = DISTINCT.format(table="waiting")


def list_keys(
    db: sqlite3.Connection, prefix: str, first: str, limit: int, waiting: bool
) -> KeyPage:
    """Keys in use from *first* on, in the order of their names; or those with messages."""
    bounds = {"prefix": prefix, "first": first, "limit": limit + 1}
    names = {
        row[0]
        for query in ([WITH_MESSAGE] if waiting else [HELD, WAITED_FOR])
        for row in db.execute(query, bounds)
    }
    return page(sorted(names)[: limit + 1], limit)
