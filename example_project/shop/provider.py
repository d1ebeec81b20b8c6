"""The payment provider, as far as the shop can see: it charges once for an idempotency key.

A call without a key is a new charge each time. The books are a file that only this module opens.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

from example_project.settings import FOLDER

BOOKS = FOLDER / "provider.db"


def charge(order_id: int, amount: int, key: str | None = None) -> None:
    """Take *amount*; nothing happens where *key* has been charged or cancelled already."""
    with _books() as books:
        books.execute(
            "INSERT INTO charges VALUES (?, ?, ?) ON CONFLICT (key) DO NOTHING",
            (key, order_id, amount),
        )


def cancel(order_id: int, key: str) -> None:
    """Give back what was taken for *key*, and take nothing for it any more."""
    with _books() as books:
        books.execute(
            "INSERT INTO charges VALUES (?, ?, 0) ON CONFLICT (key) DO UPDATE SET amount = 0",
            (key, order_id),
        )


def charges() -> list[tuple[int, int]]:
    """Everything that was taken and not given back: the order, and the amount."""
    with _books() as books:
        return list(books.execute("SELECT order_id, amount FROM charges WHERE amount > 0"))


@contextmanager
def _books() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(BOOKS, timeout=30, isolation_level="IMMEDIATE")) as books, books:
        books.execute(
            "CREATE TABLE IF NOT EXISTS charges (key TEXT UNIQUE, order_id INTEGER, amount INTEGER)"
        )
        yield books
