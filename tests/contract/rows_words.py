"""The words in which the contract of rows speaks: names, and commits that happen."""

from __future__ import annotations

from celery_dlock.stores.consensus.rows import PARTS, Commit, Committed, Kind, Name, Row, Rows
from celery_dlock.testing.contract.listing import ODD

SECOND = 1_000_000
VERSION_ROW = Name(Kind.VERSION_ROW, "key")
MESSAGE = Name(Kind.MESSAGE, "key", "task")
HOLDER = Name(Kind.HOLDER, "key", "task|1")
DONE = Name(Kind.DONE, "key", "task")

#: What no store may confuse: separators, dots, the empty text, what is no Unicode, what is long.
NAMES = [*ODD, "", ".", "..", ",", "a,b", "\udce9", "k" * 5_000, "\u9396" * 2_000]


def version_row_of(rows: Rows, name: Name = VERSION_ROW) -> Row | None:
    """The version row as it stands, asked until a commit confirms it: a read may be stale."""
    while True:
        (row,) = rows.read([name])
        if rows.commit(Commit(name, row, None if row is None else row.value)) is not None:
            return row


def value_of(rows: Rows, name: Name) -> bytes | None:
    """What the row *name* says, once *rows* sees all that has happened before."""
    version_row_of(rows, Name(Kind.VERSION_ROW, name.key))
    (row,) = rows.read([name])
    return None if row is None else row.value


def happens(rows: Rows, commit: Commit) -> Committed:
    """Commit what nothing stands against."""
    committed = rows.commit(commit)
    assert committed is not None
    return committed


def made(rows: Rows, name: Name = VERSION_ROW, value: bytes = b"version row") -> Row:
    """A version row that was not there."""
    version_row = happens(rows, Commit(name, None, value)).version_row
    assert version_row is not None
    return version_row


def tidy(rows: Rows) -> None:
    """Let it forget what it has to forget by itself."""
    for part in range(PARTS):
        rows.tidy(part)


def value_after_tidying(rows: Rows, name: Name) -> bytes | None:
    tidy(rows)
    return value_of(rows, name)
