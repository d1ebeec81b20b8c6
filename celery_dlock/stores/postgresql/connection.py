"""Connections to a PostgreSQL server, each of them used for one flight at a time.

A *flight* is statements that go to the server together, and their answers: one round trip. It
begins and ends its transaction, so a client that stops between two flights holds up nobody, and a
pooler that shares connections by transactions may be in between. That rules out whatever stays in
a session: prepared statements, ``SET``, options at the start, locks of the session, ``LISTEN``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.waiting import Ready, Wait

from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.stores.consensus.commit import Overtaken

#: How long a connection may take, in libpq's words; the URL and the driver's options override them.
LIMITS: Mapping[str, Any] = {
    "connect_timeout": 2,  # seconds
    "tcp_user_timeout": 5000,  # milliseconds
    "keepalives_idle": 5,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "application_name": "celery-dlock",
    "client_encoding": "UTF8",
}

#: Seconds until a flight is given up.
ANSWER_TIMEOUT = 5.0

#: For so long a statement waits in the server for somebody's lock, as of a table that is altered;
#: it answers before it is given up. To cancel one would be no cure: one that waits for a standby is
#: committed without it then.
LOCK_TIMEOUT = "4s"

#: Seconds until a connection that nobody uses is closed.
IDLE = 60.0

#: Seconds for which a thread waits for the connection of another, which costs less than a new one.
PATIENCE = 0.05

#: So many connections a process has, at most, with those that were given up and are not answered
#: yet. Who waits for one as long as for an answer opens one, if none was given up.
MOST = 8

#: What is sent and received is in the binary form, but for numbers that are sent.
_TEXT, _BINARY = 0, 1
_BYTEA = 17
_READERS: Mapping[int, Callable[[bytes], Any]] = {
    16: b"\1".__eq__,
    _BYTEA: bytes,
    **dict.fromkeys((20, 21, 23), partial(int.from_bytes, byteorder="big", signed=True)),
}

#: Somebody else was at the same rows, in the server's words: nothing happened.
_OVERTAKEN = frozenset({"40001", "40P01", "55P03"})


#: A right that the role does not have.
NOT_ALLOWED = "42501"

#: A schema, a table or a function that is missing.
NOT_THERE = frozenset({"3F000", "42P01", "42883"})


class Lost(BackendUnavailable):
    """The answer was lost: what was asked may have happened or not."""


class Refused(BackendUnavailable):
    """The server's answer is an error, *state* by its ``SQLSTATE``; nothing happened."""

    state = ""


class Statement(NamedTuple):
    """A statement with ``$1`` and so on for its *values*."""

    text: bytes
    values: Sequence[object] = ()


#: The rows of an answer, and how many the statement has changed.
Rows = tuple[list[tuple[Any, ...]], int]


class Connection:
    """One connection; an error closes it, and its transaction is rolled back."""

    def __init__(self, address: str) -> None:
        self._connection = psycopg.connect(address, autocommit=True)
        self.role = self._connection.info.user
        self._server = self._connection.pgconn
        self._server.enter_pipeline_mode()
        self._asked = False

    def fly(self, statements: Sequence[Statement]) -> list[Rows]:
        """The answers to *statements*, sent in one flight. Raises :exc:`psycopg.Error`."""
        for text, values in statements:
            sent = [_sent(value) for value in values]
            types = [_BYTEA if isinstance(value, bytes) else 0 for value in values]
            formats = [_BINARY if isinstance(value, bytes) else _TEXT for value in values]
            self._server.send_query_params(text, sent, types, formats, _BINARY)
        self._server.pipeline_sync()
        self._asked = True
        results = self._connection.wait(self._answers(monotonic() + ANSWER_TIMEOUT))
        for result in results:
            if result.status == pq.ExecStatus.FATAL_ERROR:
                raise psycopg.errors.error_from_result(result)
        return [_received(result) for result in results]

    def _answers(self, deadline: float) -> Generator[Wait, Ready | int, list[Any]]:
        """The results until the server is in step again, for the driver's loop to wait for."""
        server, results = self._server, list[Any]()
        while True:
            ready = yield Wait.RW if server.flush() else Wait.R
            if monotonic() > deadline:
                raise psycopg.OperationalError(f"no answer for {ANSWER_TIMEOUT:.0f} seconds")
            if ready & Ready.R:
                server.consume_input()
            if self._arrived(results):
                return results

    def _arrived(self, results: list[Any]) -> bool:
        """Add what has come in to *results*; whether that is all."""
        while not self._server.is_busy():
            result = self._server.get_result()
            if result is not None and result.status == pq.ExecStatus.PIPELINE_SYNC:
                self._asked = False
                return True
            if result is not None:
                results.append(result)
        return False

    def is_unanswered(self) -> bool:
        """Whether the server is still busy with a flight that was given up; it does not wait."""
        try:
            if self._asked:
                self._server.consume_input()
                return not self._arrived([])
        except psycopg.Error:  # it is lost
            pass
        return False

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._connection.close()


class Connections:
    """Those of one process: threads share one, and of those that are not in use one is kept.

    *address* is asked at each connection that is made, because passwords change. *prepare* is
    called once, with what sends a flight, before the first flight; it returns the name of the
    store.
    """

    def __init__(self, address: Callable[[], Address], prepare: Callable[[Fly], str]) -> None:
        self._address = address
        self._where = ""
        self._prepare = prepare
        self._store = ""
        self._other_stores: set[str] = set()
        self._mutex = threading.Condition()
        self._flying = 0
        self._ended = False
        self._idle: Connection | None = None
        self._unanswered: list[Connection] = []
        self._used = 0.0
        self._timer: threading.Timer | None = None

    def fly(self, statements: Sequence[Statement], *, repeats: bool = True) -> list[Rows]:
        """The answers to *statements*, sent in one flight.

        If the answer is lost, a flight that *repeats* is sent once more. Raises
        :exc:`~celery_dlock.errors.BackendUnavailable`, of which :exc:`Lost`, :exc:`Overtaken` and
        :exc:`Refused` say more.
        """
        self.store()
        try:
            return self.fly_unprepared(statements)
        except Lost:
            if not repeats:
                raise
            return self.fly_unprepared(statements)
        except Refused as exc:
            if exc.state in NOT_THERE:  # somebody has dropped the tables
                self._store = ""
            raise

    @property
    def is_prepared(self) -> bool:
        return self._store != ""

    def store(self) -> str:
        """The name of the store, whose tables are there then."""
        if not self._store:
            self._store = self._prepare(self.fly_unprepared)
        return self._store

    def is_store(self, name: str) -> bool:
        """Whether the store has that *name*.

        If it had another one it is asked again, once: its tables may have been made anew.
        """
        if name in self._other_stores:
            return False
        if name != self.store():
            self._store = ""
            if name != self.store():  # both are there, so these are two stores
                self._other_stores.add(name)
                return False
        return True

    def fly_unprepared(self, statements: Sequence[Statement]) -> list[Rows]:
        """One attempt of :meth:`fly`, for whoever looks at a database and makes nothing in it."""
        with self._taken() as connection:
            try:
                return connection.fly(statements)
            except psycopg.Error as exc:
                raise self._translated(exc, connection.role) from exc

    @contextmanager
    def _taken(self) -> Iterator[Connection]:
        """A connection for one flight. An error closes it, a time limit that strikes as well.

        If its flight is not answered it is closed later: the server would not notice, and begin a
        process more for each attempt.
        """
        with self._mutex:
            if self._flying:
                self._mutex.wait_for(lambda: self._idle is not None, PATIENCE)
                self._mutex.wait_for(self._has_room, ANSWER_TIMEOUT)
            if not self._has_room() and self._unanswered:
                raise BackendUnavailable(
                    f"PostgreSQL at {self._where}: {len(self._unanswered)} requests are "
                    "unanswered, and no more are sent; pg_stat_activity shows what they wait for"
                )
            connection, self._idle = self._idle, None
            self._flying += 1
        try:
            connection = connection or self._connected()
            yield connection
        except BaseException:
            with self._mutex:
                self._flying -= 1
                if connection is not None:
                    self._unanswered.append(connection)
                self._close_answered()
                self._mutex.notify()
            raise
        self._give_back(connection)

    def _has_room(self) -> bool:
        self._close_answered()
        return self._idle is not None or self._flying + len(self._unanswered) < MOST

    def _close_answered(self) -> None:
        given_up, self._unanswered = self._unanswered, []
        for connection in given_up:
            if connection.is_unanswered():
                self._unanswered.append(connection)
            else:
                connection.close()

    def _connected(self) -> Connection:
        try:
            address, self._where = self._address()
            return Connection(address)
        except psycopg.Error as exc:
            raise BackendUnavailable(self._text(exc)) from exc
        except ConfigurationError as exc:  # it was right when the store was built
            raise BackendUnavailable(str(exc)) from exc

    def _translated(self, error: psycopg.Error, role: str) -> BackendUnavailable:
        if error.sqlstate is None or error.sqlstate.startswith(("08", "57P")):
            return Lost(self._text(error))
        if error.sqlstate in _OVERTAKEN:
            return Overtaken(self._text(error))
        refused = Refused(self._text(error))
        if error.sqlstate == NOT_ALLOWED:
            denied, *_ = str(refused).splitlines()
            refused = Refused(
                f"{denied}. If that is about the schema dlock: its owner has to execute the lines "
                f"with GRANT of `celery -A … dlock init --sql --role {role}`"
            )
        refused.state = error.sqlstate
        return refused

    def _text(self, error: psycopg.Error) -> str:
        """What went wrong, without the statement."""
        said = error.diag.message_primary or str(error)
        return f"PostgreSQL at {self._where}: {said.strip()}"

    def _give_back(self, connection: Connection) -> None:
        with self._mutex:
            surplus, self._idle = self._idle, connection
            if self._ended:
                surplus, self._idle = connection, None
            self._flying -= 1
            self._used = monotonic()
            self._mutex.notify()
            if self._timer is None and not self._ended:
                self._close_in(IDLE)
        if surplus is not None:
            surplus.close()

    def _close_in(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._close_idle)
        self._timer.daemon = True
        self._timer.start()

    def _close_idle(self) -> None:
        """Close the connection that nobody has used for a minute."""
        with self._mutex:
            left = self._used + IDLE - monotonic()
            if self._timer is not threading.current_thread():
                return
            if left > 0:
                self._close_in(left)
                return
        self.close()

    def end(self) -> None:
        """Close all connections; one that a flight uses is closed as soon as that has ended."""
        with self._mutex:
            self._ended = True
        self.close()

    def close(self) -> None:
        """Close the connections that no flight uses; the next one makes another."""
        with self._mutex:
            timer, self._timer = self._timer, None
            idle, self._idle = self._idle, None
            unanswered, self._unanswered = self._unanswered, []
        if timer is not None:
            timer.cancel()
        for connection in (idle, *unanswered):
            if connection is not None:
                connection.close()


#: What sends a flight.
Fly = Callable[[Sequence[Statement]], list[Rows]]

#: Where libpq connects to, and the same for people.
Address = tuple[str, str]


def address_of(url: str, driver: Mapping[str, Any]) -> Address:
    """The address by *url* and its options *driver*, of which a function is called for its value.

    Raises :exc:`~celery_dlock.errors.ConfigurationError`, and
    :exc:`~celery_dlock.errors.BackendUnavailable` if a function fails.
    """
    try:
        driver = {name: value() if callable(value) else value for name, value in driver.items()}
    except Exception as exc:  # it asks whoever it likes for a password
        raise BackendUnavailable(f"a function in dlock_backend_options failed: {exc}") from exc
    try:
        options = conninfo_to_dict(url, **driver)
        address = make_conninfo("", **{**LIMITS, **options})
    except psycopg.Error:  # it may quote a password
        raise ConfigurationError(
            "the URL of the lock store is not of the form postgresql://[user[:password]@]host[:port]"
            "/database, or it or dlock_backend_options have an option that libpq does not know"
        ) from None
    host, database = options.get("host", "localhost"), options.get("dbname", "its default database")
    return address, f"{host}:{options.get('port', 5432)}/{database}"


def stored_text(text: str) -> str:
    """PostgreSQL has no character 0: it and the next one become two, and the order stays."""
    return text.replace("\1", "\1\2").replace("\0", "\1\1")


def _sent(value: object) -> bytes | None:
    match value:
        case None | bytes():
            return value
        case str():
            return stored_text(value).encode()
        case int() if (
            abs(value) >= 2**63
        ):  # computed from an instant that somebody else has written
            raise OverflowError(f"{value} is too large to be stored")
        case _:
            return str(value).encode()


def _received(result: Any) -> Rows:
    readers = [_READERS.get(result.ftype(n), _text) for n in range(result.nfields)]
    rows = [
        tuple(
            None if (value := result.get_value(row, column)) is None else read(value)
            for column, read in enumerate(readers)
        )
        for row in range(result.ntuples)
    ]
    return rows, result.command_tuples or 0


def _text(value: bytes) -> str:
    return _unmarked(value.decode())


def _unmarked(text: str) -> str:
    """The inverse of :func:`stored_text`."""
    return text.replace("\1\1", "\0").replace("\1\2", "\1")


def read_json(text: str) -> Any:
    """What the server has made of rows, in which a character 0 is two, too."""
    rows = json.loads(text)
    return _restored(rows) if r"\u0001" in text else rows


def _restored(value: Any) -> Any:
    match value:
        case str():
            return _unmarked(value)
        case list():
            return [_restored(item) for item in value]
        case dict():
            return {name: _restored(item) for name, item in value.items()}
        case _:
            return value
