"""The sink that keeps every event in a database, and never lets a task wait for it; and the table.

A database that is unavailable is tried again, and the events wait in memory: when they become too
many, the oldest are gone, and a row says how many. So this is what happened, for people to read,
and no ledger. Rows that are too old are deleted by the way, by whoever writes, a bounded number at
a time.

An event becomes a row for each of its keys. A row is named by who wrote it and when, not by the
database, so that one that was written twice, because an answer was lost, is there once. Keys and
task ids are found by a hash, since databases bound what an index takes; an id comes from whoever
sends a message and may be of any length. Each question costs a bounded number of rows.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import count, zip_longest
from typing import Any, Self

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Engine,
    Executable,
    Index,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    and_,
    case,
    create_engine,
    delete,
    event,
    func,
    insert,
    inspect,
    make_url,
    or_,
    select,
)
from sqlalchemy.dialects.mysql import MEDIUMTEXT
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    SQLAlchemyError,
    StatementError,
)

from celery_dlock import forking
from celery_dlock.core.events import Event, Missing, Subject, plain
from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.files import make_for_owner
from celery_dlock.monitoring.batching import Batcher
from celery_dlock.settings import HistoryOptions, Settings

#: Of a text so many characters are kept: what a ``TEXT`` of MySQL has room for, four bytes each.
LONGEST_TEXT = 16_000

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

#: Seconds until a database that does not answer is unavailable, for drivers that know the word;
#: with SQLite, how long to wait for another process.
DATABASE_TIMEOUT = 5
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
        given = {word: DATABASE_TIMEOUT} if word and word not in parsed.query else {}
        engine = create_engine(parsed, pool_pre_ping=True, hide_parameters=True, connect_args=given)
    except NoSuchModuleError as exc:
        raise ConfigurationError(f"dlock_history: {exc}") from exc
    except ImportError as exc:
        what = "the URL names a driver that is not installed"
        raise ConfigurationError(f"dlock_history: {what}: {exc}") from exc
    except (ArgumentError, ValueError, TypeError):  # they may quote it
        raise ConfigurationError("dlock_history is no URL that SQLAlchemy can read") from None
    if engine.dialect.is_async:
        what = f"{engine.dialect.driver} needs an event loop: name another driver of the database"
        raise ConfigurationError(f"dlock_history: {what}, such as postgresql+psycopg://")
    if engine.dialect.name == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise ConfigurationError("dlock_history needs a file: sqlite:///locks-history.db")
    if engine.dialect.name == "sqlite":
        event.listen(engine, "do_connect", _make_file)
    return engine


def _make_file(_dialect: Any, _record: Any, arguments: Sequence[Any], _options: Any) -> None:
    """The events name tasks and keys, which others on this machine need not read."""
    if arguments and not str(arguments[0]).startswith("file:"):
        make_for_owner(arguments[0])


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


def error_text(exc: Exception) -> str:
    """The error of a database, without the statement."""
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
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"


#: The latest so many events are counted by task, and of each name so many say how long it took.
COUNTED = 50_000
SAMPLES = 500

#: When, event, key, task id, task name, label, token, details.
Row = tuple[int, str, str | None, str, str, str, int | None, str]

_C = TABLE.c
_ROW = (_C.at, _C.event, _C.key, _C.task_id, _C.task_name, _C.label, _C.token, _C.details)


class Queries:
    """Questions to the database of *engine*."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._made = False

    @classmethod
    def of(cls, options: HistoryOptions) -> Self:
        """Raises :exc:`~celery_dlock.ConfigurationError`, and does not connect."""
        return cls(open_engine(options.url))

    def of_key(self, key: str, limit: int, before: int | None) -> Sequence[Row]:
        """The latest *limit* of *key*, before an instant in microseconds."""
        earlier = [_C.at < before] if before is not None else []
        return self._latest(limit, _C.key_hash == hashed(key), *earlier)

    def of_task(self, task_id: str, limit: int) -> Sequence[Row]:
        """The latest *limit* of a task."""
        return self._latest(limit, _C.task_hash == hashed(task_id))

    def recent(self, limit: int, since: int | None) -> Sequence[Row]:
        """The latest *limit* of all, after an instant in microseconds."""
        return self._latest(limit, *([_C.at > since] if since is not None else []))

    def by_task(
        self, since: int
    ) -> tuple[int | None, Sequence[tuple[str, str, int]], Sequence[tuple[str, str, str]]]:
        """From when on was counted, if not from *since*; how many by name and event; and samples.

        A sample is name, event and details. The first refusal of a task is counted as ``Refused``,
        and a lock that was had without one as ``AtOnce``.
        """
        latest = select(*_ROW).where(_C.at >= since, _C.part == 0).order_by(_C.at.desc())
        first = self._ask(select(latest.subquery().c.at).offset(COUNTED - 1).limit(1))
        events = latest.limit(COUNTED).subquery().c
        parked = and_(events.event == "Parked", events.details.startswith('{"refused":true'))
        first_time = events.details.like('%"attempt":0,%')
        refused = or_(parked, and_(events.event == "Contended", first_time))
        at_once = and_(events.event == "Acquired", events.details.like('%"waited":0.0,%'))
        kind = case((refused, "Refused"), (at_once, "AtOnce"), else_=events.event).label("kind")
        counts = select(events.task_name, kind, func.count()).group_by(events.task_name, kind)
        nth = func.row_number().over(
            partition_by=(events.task_name, events.event), order_by=events.at.desc()
        )
        timed = (
            select(events.task_name, events.event, events.details, nth.label("nth"))
            .where(events.event.in_(("Acquired", "Released")))
            .subquery()
            .c
        )
        samples = select(timed.task_name, timed.event, timed.details).where(timed.nth <= SAMPLES)
        return (first[0][0] if first else None), self._ask(counts), self._ask(samples)

    def close(self) -> None:
        self._engine.dispose()

    def _latest(self, limit: int, *conditions: ColumnElement[bool]) -> Sequence[Row]:
        newest = (_C.at.desc(), _C.writer, _C.number.desc(), _C.part)
        return self._ask(select(*_ROW).where(*conditions).order_by(*newest).limit(limit))

    def _ask(self, question: Executable) -> Sequence[Any]:
        try:
            # Before anybody has written anything there is no table.
            self._made = self._made or inspect(self._engine).has_table(TABLE.name)
            if self._made:
                with self._engine.connect() as connection:
                    return [tuple(row) for row in connection.execute(question)]
        except SQLAlchemyError as exc:
            self._made = False  # it may have been dropped
            raise BackendUnavailable(f"the history is unavailable: {error_text(exc)}") from exc
        return []


logger = logging.getLogger("celery_dlock")

#: Seconds between two looks at what is too old, and how many rows are deleted at once, how often.
LOOK_FOR_OLD = 30.0
OLD_AT_ONCE = 5000
OLD_ROUNDS = 20

#: What a row is at fault for; for anything else the database is.
_OF_THE_ROW = (DataError, IntegrityError, UnicodeError, ValueError, TypeError, OverflowError)

#: When it happened, in microseconds since 1970, its number, and what.
Noted = tuple[int, int, Event]


class HistorySink(Batcher[Noted]):
    """Writes events to the database of *options*; ``dlock_history`` is the setting for it."""

    name = "the history"
    idle = 30.0
    last_pause = 10.0
    exit_timeout = 3.0

    def __init__(self, options: HistoryOptions) -> None:
        self._keep = int(options.keep * 1_000_000)
        self._engine = open_engine(options.url)
        self._last = 0
        super().__init__()

    def _begin(self) -> None:
        super()._begin()
        self._writer = secrets.randbits(62)
        self._numbers = count(1)
        self._made = False
        self._look_for_old = 0.0

    @classmethod
    def from_app(cls, app: Any) -> Self:
        """The sink for the database that ``dlock_history`` names.

        Raises :exc:`~celery_dlock.ConfigurationError` for one that cannot be. It does not connect.
        """
        options = Settings.from_conf(app.conf).history
        assert options is not None, "dlock_history is not set"
        return cls(options)

    def __call__(self, event: Event) -> None:
        with self._mutex:  # in the order of their instants, which are all different
            self._last = max(time.time_ns() // 1000, self._last + 1)
            self.put((self._last, next(self._numbers), event))

    def write(self, batch: Sequence[Noted], missing: int) -> None:
        """Write *batch* whole and once: what has arrived of it already stays as it is."""
        noted = [(at, number, plain(event)) for at, number, event in batch]
        if missing:
            at, number, _ = batch[0]
            noted.append((at - 1, -number, plain(Missing(Subject("", "", ""), missing))))
        written = [
            row for at, number, fields in noted for row in rows(at, self._writer, number, fields)
        ]
        try:
            if not self._made:
                create(self._engine)
                self._made = True
            self._insert(written)
        except _OF_THE_ROW:
            for row in written:
                self._insert_alone(row)
        except BaseException:
            self._made = False  # somebody may have dropped it
            raise
        self._delete_old()

    def close(self) -> None:
        """Give back the connection."""
        self._engine.dispose()

    def error_text(self, exc: Exception) -> str:
        """Without the statement."""
        return error_text(exc)

    def after_fork_in_child(self) -> None:
        """Begin anew; the end of its connection is the parent's, too."""
        forking.keep(self._engine.pool)  # to close a connection would speak over it
        self._engine.dispose(close=False)
        super().after_fork_in_child()

    def _insert(self, written: list[dict[str, Any]]) -> None:
        with self._engine.begin() as connection:
            connection.execute(insert(TABLE), written)

    def _insert_alone(self, row: dict[str, Any]) -> None:
        try:
            self._insert([row])
        except IntegrityError:
            pass  # it is there: the answer to an earlier attempt was lost
        except _OF_THE_ROW as exc:
            logger.warning("an event of a lock is missing in the history: %s", error_text(exc))

    def _delete_old(self) -> None:
        """Delete what is too old, if it was not looked for in a while; it raises nothing."""
        now = time.monotonic()
        if now < self._look_for_old:
            return
        self._look_for_old = now + LOOK_FOR_OLD
        until = time.time_ns() // 1000 - self._keep
        try:
            for _ in range(OLD_ROUNDS):
                if not self._delete_some(until):
                    return
        except SQLAlchemyError as exc:  # two processes may be in each other's way
            logger.debug("old events could not be deleted now: %s", error_text(exc))

    def _delete_some(self, until: int) -> bool:
        """Delete a bounded number of those before *until*; whether there may be more."""
        some = select(TABLE.c.at).where(TABLE.c.at < until).order_by(TABLE.c.at)
        with self._engine.connect() as connection:
            last = connection.scalar(some.offset(OLD_AT_ONCE).limit(1))
        end = TABLE.c.at < until if last is None else TABLE.c.at <= last
        with self._engine.begin() as connection:
            connection.execute(delete(TABLE).where(end))
        return last is not None
