"""The table that keeps events, and how an event becomes rows of it: one for each of its keys.

A row is named by who wrote it and when, not by the database, so that one that was written twice,
because an answer was lost, is there once. Keys and task ids are found by a hash, since databases
bound what an index takes; an id comes from whoever sends a message and may be of any length.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from itertools import zip_longest
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Engine,
    Index,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    create_engine,
    make_url,
)
from sqlalchemy.dialects.mysql import MEDIUMTEXT
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, StatementError

from celery_dlock.errors import ConfigurationError

#: Of a text so many characters are kept: what a ``TEXT`` of MySQL has room for, four bytes each.
LONGEST = 16_000

_DETAILS = Text().with_variant(MEDIUMTEXT(), "mysql", "mariadb")

TABLE = Table(
    "dlock_history",
    MetaData(),
    # Microseconds since 1970 on the clock of the host where it happened.
    Column("at", BigInteger, primary_key=True, autoincrement=False),
    # Which sink wrote it, its how-manieth event it was, and which of the event's keys this is.
    Column("writer", BigInteger, primary_key=True, autoincrement=False),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("part", SmallInteger, primary_key=True, autoincrement=False),
    Column("event", String(32), nullable=False),
    Column("key_hash", String(32)),
    Column("key", Text),
    Column("task_hash", String(32), nullable=False),
    Column("task_id", Text, nullable=False),
    Column("task_name", Text, nullable=False),
    Column("label", Text, nullable=False),
    Column("token", BigInteger),
    Column("details", _DETAILS, nullable=False),
    Index("dlock_history_key", "key_hash", "at"),
    Index("dlock_history_task", "task_hash", "at"),
    mysql_charset="utf8mb4",
    mysql_collate="utf8mb4_bin",
    mariadb_charset="utf8mb4",
    mariadb_collate="utf8mb4_bin",
)

_json = json.JSONEncoder(separators=(",", ":"), default=str).encode

#: Seconds until a database that does not answer counts as away, for drivers that know the word;
#: with SQLite, how long to wait for another process.
PATIENCE = 5
_TIMEOUTS = {
    "psycopg": "connect_timeout",
    "psycopg2": "connect_timeout",
    "pymysql": "connect_timeout",
    "mysqldb": "connect_timeout",
    "pysqlite": "timeout",
}

#: Several processes may be about to make the table.
ATTEMPTS = 5


def open_engine(url: str) -> Engine:
    """The database of *url*; it does not connect.

    Raises :exc:`~celery_dlock.ConfigurationError` for what cannot be one. Its message has nothing
    of the URL, which may have a password.
    """
    try:
        parsed = make_url(url)
        word = _TIMEOUTS.get(parsed.get_driver_name())
        given = {word: PATIENCE} if word and word not in parsed.query else {}
        engine = create_engine(parsed, pool_pre_ping=True, hide_parameters=True, connect_args=given)
    except NoSuchModuleError as exc:
        raise ConfigurationError(f"dlock_history: {exc}") from exc
    except ImportError as exc:
        what = "the URL names a driver that is not installed"
        raise ConfigurationError(f"dlock_history: {what}: {exc}") from exc
    except (ArgumentError, ValueError, TypeError) as exc:
        raise ConfigurationError("dlock_history is no URL that SQLAlchemy can read") from exc
    if engine.dialect.is_async:
        what = f"{engine.dialect.driver} needs an event loop: name another driver of the database"
        raise ConfigurationError(f"dlock_history: {what}, such as postgresql+psycopg://")
    if engine.dialect.name == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise ConfigurationError("dlock_history needs a file: sqlite:///locks-history.db")
    return engine


def create(engine: Engine) -> None:
    """Make the table and its indices where they are missing; others may be at it, too."""
    for attempts_left in reversed(range(ATTEMPTS)):
        try:
            with engine.begin() as connection:
                TABLE.create(connection, checkfirst=True)
                for index in TABLE.indexes:
                    index.create(connection, checkfirst=True)
        except DBAPIError:
            if not attempts_left:
                raise
        else:
            return


def said(exc: Exception) -> str:
    """What a database had to say, without the statement."""
    return f"{type(exc).__name__}: {(isinstance(exc, StatementError) and exc.orig) or exc}"


def hashed(text: str) -> str:
    """By what the rows of a key or a task are found."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def rows(at: int, writer: int, number: int, fields: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of an event, which :func:`~celery_dlock.core.events.plain` has turned to *fields*.

    *number* is its own among those of this *writer*.
    """
    rest = dict(fields)
    row: dict[str, Any] = {
        "at": at,
        "writer": writer,
        "number": number,
        "event": rest.pop("event"),
        "task_hash": hashed(fields["task_id"]),
        **{name: _kept(rest.pop(name)) for name in ("task_id", "task_name", "label")},
    }
    for part, (key, token) in enumerate(_keys(rest)):
        yield {
            **row,
            "part": part,
            "key": None if key is None else _kept(key),
            "key_hash": None if key is None else hashed(key),
            "token": token,
            "details": _json(rest),
        }


def _keys(rest: dict[str, Any]) -> list[tuple[str | None, int | None]]:
    """Keys and tokens, taken out of *rest*; what is of several keys together stays there."""
    if "keys" not in rest:
        key = rest.pop("resource", None) if "resource" in rest else rest.pop("key", None)
        return [(key, rest.pop("mine", None))]
    keys, tokens = rest["keys"], rest.pop("tokens", ())
    if len(keys) == 1:
        del rest["keys"]
    return [(key, token or None) for key, token in zip_longest(keys, tokens)]


def _kept(text: str) -> str:
    """*text* as every database takes it: without halves of characters and NUL, and not too long."""
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    if "\0" in text:
        text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
