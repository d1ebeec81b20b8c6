"""The notes beside a key in the SQLite file, and the largest token that has written there."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

RAISE = (
    "INSERT INTO bar VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET token=excluded.token "
    "WHERE excluded.token>=bar.token"
)


def write_notes(
    db: sqlite3.Connection, prefix: str, key: str, token: int, notes: Mapping[str, bytes | None]
) -> bool:
    """Write *notes* unless a larger token has; whether that was done."""
    if not db.execute(RAISE, (prefix, key, token)).rowcount:
        return False
    gone = [(prefix, key, name) for name, text in notes.items() if text is None]
    db.executemany("DELETE FROM note WHERE prefix=? AND key=? AND name=?", gone)
    rows = [(prefix, key, name, text) for name, text in notes.items() if text is not None]
    db.executemany("INSERT OR REPLACE INTO note VALUES (?, ?, ?, ?)", rows)
    return True


def read_notes(db: sqlite3.Connection, prefix: str, key: str) -> dict[str, bytes]:
    """What stands beside *key*."""
    rows = db.execute("SELECT name, body FROM note WHERE prefix=? AND key=?", (prefix, key))
    return {name: bytes(body) for name, body in rows}
