"""The file behind the SQLite store: one connection under a mutex, and none across a fork.

SQLite keeps what it knows of a file's locks per process, and a child inherits that knowledge
without the locks. A child that opens the file anew then believes it holds a lock it does not,
and the parent, on closing, takes itself for the last user and deletes the log under the child's
feet. So every connection is closed before a fork and opened again when it is needed.
Where C code forks and Python does not hear of it, the child cannot use the file.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from celery_dlock import forking
from celery_dlock.core.backoff import CHANCE
from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.files import make_for_owner
from celery_dlock.stores.sql.tables import TABLES
from celery_dlock.stores.unreadable import NONSENSE, UnreadableKey

#: "dlck": marks the file as ours, so that another program's database is never touched.
APPLICATION_ID = 0x646C636B
SCHEMA_VERSION = 1

#: Seconds between two tries, on average, while another process writes.
PAUSE = 0.001

SCHEMA = (
    # The smallest token that has not been issued; one counter for all keys.
    "CREATE TABLE token (next INTEGER NOT NULL)",
    "INSERT INTO token VALUES (1)",
    # One row for each key that is held, closed, reserved, or waited for with a message.
    """CREATE TABLE state (
        prefix TEXT NOT NULL, key TEXT NOT NULL, holders TEXT NOT NULL, grants TEXT NOT NULL,
        cooling TEXT NOT NULL, hold TEXT, parked INTEGER NOT NULL, paused INTEGER NOT NULL,
        due INTEGER, PRIMARY KEY (prefix, key)) WITHOUT ROWID""",
    "CREATE INDEX state_due ON state (prefix, due) WHERE due IS NOT NULL",
    *TABLES,
)


class DatabaseFile:
    """Hands out transactions on the file, one at a time in this process.

    Raises :exc:`~celery_dlock.errors.ConfigurationError` for a file that is not, or cannot
    become, a lock store; :exc:`~celery_dlock.errors.BackendUnavailable` for whatever may pass.
    *timeout* is how many seconds to wait for another process's transaction. A missing file is made,
    also in place of one that was deleted while it was open.
    """

    def __init__(self, path: Path, timeout: float) -> None:
        self.path = path
        self._timeout = timeout
        self._mutex = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None
        with _files_mutex:
            _files.add(self)
        forking.tell(self)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """The file's write lock; what was done is committed at the end, or none of it."""
        with self._mutex, self._translated():
            if self._opened != _identity(self.path):  # else each process might have its own file
                self._disconnect()
            if self._connection is None:
                self._connection = self._open()
                self._opened = _identity(self.path)
            try:
                self._patiently(self._connection, "BEGIN IMMEDIATE")
                yield self._connection
                self._patiently(self._connection, "COMMIT")
            except BaseException:
                self._disconnect()
                raise

    def close(self) -> None:
        with self._mutex, self._translated():
            self._disconnect()

    def before_fork(self) -> None:
        self._mutex.acquire()
        self._disconnect()

    def after_fork(self) -> None:
        self._mutex.release()

    def after_fork_in_child(self) -> None:
        if self._connection is not None:  # nobody has closed it before
            forking.keep(self._connection)
            self._connection = None
            _left_open.add(self.path)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):  # a cursor that is still known would keep the lock
                connection.rollback()
            connection.close()

    def _open(self) -> sqlite3.Connection:
        if self.path in _left_open:
            raise ConfigurationError(
                f"{self.path} was open in the process that forked this one without Python's "
                "knowledge; use locks only after the fork (uWSGI: lazy-apps = true)"
            )
        make_for_owner(self.path)
        connection = sqlite3.connect(
            self.path, timeout=0, isolation_level=None, check_same_thread=False
        )
        # What is no UTF-8 is for those to refuse who look at that row, not for all.
        connection.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        self._patiently(connection, "BEGIN IMMEDIATE")  # several processes may be the first
        if not self._is_ours(connection):
            for statement in SCHEMA:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        self._patiently(connection, "COMMIT")
        self._patiently(connection, "PRAGMA journal_mode=WAL")
        # A sync of the disk at each commit, milliseconds on a laptop. With less, a power cut may
        # take back the last commits, and a token would be issued a second time.
        connection.execute("PRAGMA synchronous=FULL")

    def _is_ours(self, connection: sqlite3.Connection) -> bool:
        """Whether the file is a lock store already; ``False`` for an empty one."""
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
        if application == 0 and version == 0 and empty:
            return False
        if application != APPLICATION_ID:
            raise ConfigurationError(
                f"{self.path} is another program's database; give the locks a file of their own"
            )
        if version != SCHEMA_VERSION:
            raise ConfigurationError(
                f"{self.path} has schema version {version} and this release of celery-dlock reads "
                f"version {SCHEMA_VERSION}; run one release on all processes of this machine"
            )
        return True

    def _patiently(self, connection: sqlite3.Connection, statement: str) -> None:
        """Try until the other processes let it happen.

        SQLite's own way of waiting slows down to ten tries a second; beside a process that is
        never idle it was starved for 5 s, and some statements do not wait at all.
        """
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                connection.execute(statement)
            except sqlite3.OperationalError as exc:
                busy = exc.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not busy or time.monotonic() >= deadline:
                    raise
            else:
                return
            time.sleep(CHANCE.uniform(0, 2 * PAUSE))

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as exc:
            if getattr(exc, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
                raise ConfigurationError(f"{self.path} is not an SQLite database") from exc
            raise BackendUnavailable(f"{self.path}: {exc}") from exc
        except NONSENSE as exc:
            raise UnreadableKey(f"{self.path} has rows that cannot be read: {exc!r}") from exc


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file has that path; ``None`` if none has."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


_files: weakref.WeakSet[DatabaseFile] = weakref.WeakSet()
_files_mutex = threading.Lock()
_forking: list[DatabaseFile] = []
_left_open: set[Path] = set()


def _before_fork() -> None:
    _files_mutex.acquire()
    for file in list(_files):
        file.before_fork()
        _forking.append(file)


def _after_fork() -> None:
    for file in _forking:
        file.after_fork()
    _forking.clear()
    _files_mutex.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
