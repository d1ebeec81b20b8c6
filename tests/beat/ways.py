"""The lock stores of several beats: each beat has a way of its own, which can be cut.

The store can be away as a whole, and forgets nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from tests.chaos.stores import DURABLE
from tests.services.etcd import EtcdServer
from tests.services.ports import free_ports
from tests.services.proxy import Proxy, proxy_to
from tests.services.redis import RedisServer
from tests.services.zookeeper import ZooKeeperServer

Server = RedisServer | EtcdServer | ZooKeeperServer


class Ways(Protocol):
    """*urls* lead to one store, *direct* as well; only those can be cut."""

    urls: list[str]
    direct: str

    def cut(self, number: int) -> AbstractContextManager[None]:
        """The way of that number leads nowhere for the time of the block."""

    def away(self) -> AbstractContextManager[None]:
        """There is no store for the time of the block."""


class ServerWays:
    """To a server that is one process, each through a proxy."""

    def __init__(self, scheme: str, server: Server, proxies: list[Proxy]) -> None:
        self.urls = [f"{scheme}://127.0.0.1:{proxy.port}" for proxy in proxies]
        self.direct = f"{scheme}://127.0.0.1:{server.port}"
        self._server = server
        self._proxies = proxies
        (self._nowhere,) = free_ports(1)

    @contextmanager
    def cut(self, number: int) -> Iterator[None]:
        proxy = self._proxies[number]
        there, proxy.target = proxy.target, self._nowhere
        proxy.cut()
        try:
            yield
        finally:
            proxy.target = there

    def away(self) -> AbstractContextManager[None]:
        return self._server.away()


class FileWays:
    """To a file of SQLite; it is away while another program holds its write lock."""

    def __init__(self, folder: Path, count: int) -> None:
        self._path = folder / "locks.db"
        self.direct = f"sqlite:///{self._path}"
        self.urls = [self.direct] * count

    def cut(self, number: int) -> AbstractContextManager[None]:
        raise NotImplementedError("a file has no connections")

    @contextmanager
    def away(self) -> Iterator[None]:
        with closing(sqlite3.connect(self._path, timeout=60, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield


@dataclass(frozen=True, slots=True)
class Kind:
    """How to open the ways to one kind of store. *server* is what ``mark.server`` takes."""

    name: str
    server: str | None
    start: Callable[[], Server] | None = None


@contextmanager
def open_ways(kind: Kind, folder: Path, count: int) -> Iterator[Ways]:
    """*count* ways to a store of its own."""
    if kind.start is None:
        yield FileWays(folder, count)
        return
    with ExitStack() as stack:
        server = kind.start()
        stack.enter_context(server)
        proxies = [stack.enter_context(proxy_to(server.port)) for _ in range(count)]
        yield ServerWays(kind.name, server, proxies)


#: ZooKeeper keeps no session for longer than it is told.
LONGEST = 120_000

KINDS = (
    Kind("redis", "redis", lambda: RedisServer(*DURABLE)),
    Kind("zookeeper", "zookeeper", lambda: ZooKeeperServer(maxSessionTimeout=LONGEST)),
    Kind("etcd", "etcd", EtcdServer),
    Kind("sqlite", None),
)

#: A row of parameters for each, with its server's marker.
EACH_KIND = [
    pytest.param(kind, id=kind.name, marks=[pytest.mark.server(kind.server)] if kind.server else [])
    for kind in KINDS
]
