"""The lock stores of a campaign, and how each is taken away from the workers."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from tests.chaos.plan import Kind
from tests.services.postgresql import PostgresqlServer
from tests.services.proxy import proxy_to
from tests.services.redis import RedisServer
from tests.services.require import require

#: Every write is on disk before it is answered, so a restart forgets nothing.
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


class Store:
    """A store that can fail in the ways that *kinds* names, and in no other."""

    kinds: ClassVar[tuple[Kind, ...]]

    @property
    def lost_replies(self) -> Sequence[float]:
        """When it lost one, on the monotonic clock: at times long after it was told to."""
        return ()

    @property
    def settings(self) -> Mapping[str, Any]:
        """Celery's settings for it."""
        raise NotImplementedError

    def cut(self) -> None:
        """End all connections."""
        raise NotImplementedError

    def lose_replies(self, count: int) -> None:
        """Do what the next *count* requests ask for, and answer none of them."""
        raise NotImplementedError

    def away(self) -> AbstractContextManager[None]:
        """Gone for the time of the block; it forgets nothing."""
        raise NotImplementedError

    def paused(self) -> AbstractContextManager[None]:
        """It does not answer for the time of the block, and may do afterwards what it was asked."""
        raise NotImplementedError

    def member_killed(self, target: int) -> AbstractContextManager[None]:
        """One of its members is dead for the time of the block."""
        raise NotImplementedError

    def member_paused(self, target: int) -> AbstractContextManager[None]:
        """One of its members does not answer for the time of the block."""
        raise NotImplementedError


class ProxiedStore(Store):
    """A server of its own, behind a proxy that loses replies to requests with these *words*."""

    def __init__(
        self, stack: ExitStack, server: PostgresqlServer | RedisServer, *words: bytes
    ) -> None:
        self._server: PostgresqlServer | RedisServer = server
        stack.enter_context(server)
        self._proxy = stack.enter_context(proxy_to(server.port))
        self._words = words

    @property
    def lost_replies(self) -> Sequence[float]:
        return self._proxy.lost

    def cut(self) -> None:
        self._proxy.cut()

    def lose_replies(self, count: int) -> None:
        self._proxy.lose_replies(count, self._writes)

    def _writes(self, request: bytes) -> bool:
        return any(word in request for word in self._words)

    def away(self) -> AbstractContextManager[None]:
        return self._server.away()


class RedisStore(ProxiedStore):
    """*scheme* may be another's."""

    kinds: ClassVar[tuple[Kind, ...]] = (
        *(Kind.CUT_STORE, Kind.LOSE_REPLIES),
        *(Kind.STORE_AWAY, Kind.PAUSE_STORE),
    )

    def __init__(self, stack: ExitStack, scheme: str = "redis") -> None:
        super().__init__(stack, RedisServer(*DURABLE), b"EVALSHA")
        self._scheme = scheme

    @property
    def settings(self) -> Mapping[str, Any]:
        patience = {"socket_timeout": 1.0, "socket_connect_timeout": 1.0}
        url = f"{self._scheme}://127.0.0.1:{self._proxy.port}/0"
        return {"dlock_url": url, "dlock_backend_options": patience}

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._server.pause()
        try:
            yield
        finally:
            self._server.resume()


class PostgresqlStore(ProxiedStore):
    kinds: ClassVar[tuple[Kind, ...]] = (Kind.CUT_STORE, Kind.LOSE_REPLIES, Kind.STORE_AWAY)

    def __init__(self, stack: ExitStack) -> None:
        server = PostgresqlServer(require("postgresql").parent)
        super().__init__(stack, server, b"READ WRITE", b"dlock.take", b"dlock.release")

    @property
    def settings(self) -> Mapping[str, Any]:
        return {
            "dlock_url": self._server.url.replace(str(self._server.port), str(self._proxy.port))
        }


class SqliteStore(Store):
    """A file; it is paused while another program has its write lock. *scheme* may be another's."""

    kinds: ClassVar[tuple[Kind, ...]] = (Kind.PAUSE_STORE,)

    def __init__(self, folder: Path, scheme: str = "sqlite") -> None:
        self._path = folder / "locks.db"
        self._scheme = scheme

    @property
    def settings(self) -> Mapping[str, Any]:
        url = f"{self._scheme}:///{self._path}"
        return {"dlock_url": url, "dlock_backend_options": {"timeout": 1.0}}

    @contextmanager
    def paused(self) -> Iterator[None]:
        with closing(sqlite3.connect(self._path, timeout=1, isolation_level=None)) as other:
            with suppress(sqlite3.OperationalError):  # a worker was paused that has it: as good
                other.execute("BEGIN IMMEDIATE")
            yield
