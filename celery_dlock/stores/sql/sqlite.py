"""The store in a file: all processes of one machine, no server.

What it does not give: anything to a second machine, and a network share is one (SQLite's locks do
not hold there). One process writes at a time, each write waits for the disk, and under gevent and
eventlet the whole process waits with it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Self

from celery_dlock.errors import ConfigurationError
from celery_dlock.stores.base import BackendOptions, Guarantee, Trait, wall_clock
from celery_dlock.stores.sql.rows import Database, SqlDialect
from celery_dlock.stores.sql.sqlite_file import DatabaseFile
from celery_dlock.stores.sql.store import SqlBackend

BUSY_TIMEOUT = 5.0


class SqliteBackend(SqlBackend):
    """Locks in an SQLite file of their own.

    ``sqlite:///file.db`` is relative to the working directory, ``sqlite:////var/lib/file.db`` is
    absolute. The driver option ``timeout`` is how many seconds to wait for another process.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset(
        {
            Trait.MULTI_PROCESS,
            Trait.DURABLE,
            Trait.LEASE_PER_TASK,
            Trait.MONOTONE_FENCING,
            Trait.STRICT_FENCING,
        }
    )
    guarantee: ClassVar[Guarantee] = Guarantee.STRICT
    largest_message: ClassVar[int] = 500_000_000  # half of what SQLite takes by default
    dialect = SqlDialect("SELECT next FROM token", issued="UPDATE token SET next = next + 1")

    def __init__(self, path: Path, options: BackendOptions) -> None:
        if path.is_dir():
            raise ConfigurationError(f"{path} is a folder; name a file in it")
        if not path.parent.is_dir():
            raise ConfigurationError(f"the folder {path.parent} does not exist; {path} needs it")
        self._file = DatabaseFile(path, _timeout(options))
        super().__init__(options)
        self._now = options.clock or wall_clock

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> Self:
        scheme, _, rest = url.partition("://")
        host, slash, path = rest.partition("/")
        if scheme != "sqlite" or host or "?" in path:
            raise ConfigurationError(  # not quoted: what stands there may be a password
                "the URL is not of the form sqlite:///relative.db or sqlite:////absolute/path.db; "
                "options go to dlock_backend_options"
            )
        if not slash or path in ("", ":memory:"):
            raise ConfigurationError(
                f"{url!r} names no file, as in sqlite:///dlock.db; "
                "for locks within one process use memory://"
            )
        return cls(Path(path).absolute(), options)

    @contextmanager
    def transaction(
        self, keys: Collection[str] = (), *, wait: bool = True
    ) -> Iterator[tuple[Database, int]]:
        """The file's lock, which is that of every key."""
        with self._file.transaction() as db:
            yield db, self._now()

    def now(self) -> int:
        return self._now()

    def missing(self) -> str:
        if self._file.path.exists():
            return ""
        return (
            f"there is no lock store {self._file.path}: the first worker makes it, and a relative "
            "path in dlock_url leads elsewhere from another folder"
        )

    def close(self) -> None:
        """Close the file; the next operation opens it again."""
        self._file.close()


def _timeout(options: BackendOptions) -> float:
    unknown = sorted(set(options.driver) - {"timeout"})
    if unknown:
        raise ConfigurationError(
            f"dlock_backend_options for sqlite knows timeout only, got {', '.join(unknown)}"
        )
    timeout = options.driver.get("timeout", BUSY_TIMEOUT)
    if not isinstance(timeout, int | float) or not math.isfinite(timeout) or timeout < 0:
        raise ConfigurationError(f"timeout must be a number of seconds, got {timeout!r}")
    return float(timeout)
