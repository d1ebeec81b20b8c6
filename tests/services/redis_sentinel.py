"""A master, two replicas and three Sentinels, as processes of our own.

Import the fixtures into a ``conftest.py``. ``redis_sentinel`` is shared by a whole run, so a test
takes a key prefix of its own; ``own_redis_sentinel`` is for a test that kills or pauses a server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis

from tests.services.redis import RedisServer
from tests.services.require import require
from tests.services.started import Started
from tests.services.until import until

NAME = "mymaster"

#: Milliseconds without an answer until a Sentinel takes a server for gone. On a busy machine half
#: of it was too short: a master just promoted was taken for gone as well, and replaced by one that
#: had not heard of what it was told meanwhile.
DOWN_AFTER = 1000

_REPLICATING = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")

_CONFIGURATION = f"""
sentinel monitor {NAME} 127.0.0.1 %(port)s 2
sentinel down-after-milliseconds {NAME} {DOWN_AFTER}
sentinel failover-timeout {NAME} 3000
"""


class Sentinel(RedisServer):
    """One Sentinel that watches over the master at *port*."""

    program = "redis-sentinel"

    def __init__(self, port: int) -> None:
        super().__init__()
        self._watches = port

    def command(self) -> list[str]:
        configuration = self.folder / "sentinel.conf"
        if not configuration.exists():
            configuration.write_text(_CONFIGURATION % {"port": self._watches})
        port = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        return ["redis-server", str(configuration), *port, "--sentinel"]

    def hurry(self) -> None:
        """Look for others more often than every two seconds."""
        with self.client() as client:
            client.execute_command("SENTINEL", "DEBUG", "publish-period", 100, "info-period", 100)


class RedisSentinel(Started):
    """*port_of* says where everybody is to find the first master, as behind a proxy."""

    def __init__(self, port_of: Callable[[RedisServer], int] = lambda server: server.port) -> None:
        first = RedisServer(*_REPLICATING)
        port = port_of(first)
        follow = (*_REPLICATING, "--replicaof", "127.0.0.1", str(port))
        self.servers = [first, RedisServer(*follow), RedisServer(*follow)]
        self.sentinels = [Sentinel(port) for _ in range(3)]
        self._running = ExitStack()

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{NAME}/0"

    @property
    def master(self) -> RedisServer:
        """The server that most of the Sentinels that answer take for the master."""
        ports = [port for sentinel in self.sentinels if (port := _master_of(sentinel))]
        port = max(set(ports), key=ports.count)
        first, *others = self.servers
        return next((server for server in others if server.port == port), first)

    @property
    def replicas(self) -> list[RedisServer]:
        master = self.master
        return [server for server in self.servers if server is not master]

    def start(self) -> None:
        """Start, and return when a failover is possible."""
        for server in (*self.servers, *self.sentinels):
            self._running.callback(server.stop)
            server.begin()
        for server in (*self.servers, *self.sentinels):
            server.wait()
        for sentinel in self.sentinels:
            sentinel.hurry()
        until("every Sentinel knows all", self.is_whole)

    def is_whole(self) -> bool:
        """Whether each Sentinel knows the others, and both replicas follow the master."""
        linked = self.master.info("replication").get("connected_slaves") == 2
        return linked and all(map(_knows_all, self.sentinels))

    def stop(self) -> None:
        self._running.close()


def _state(sentinel: RedisServer) -> dict[str, Any]:
    with sentinel.client() as client:
        try:
            state: dict[str, Any] = client.sentinel_master(NAME)
        except redis.RedisError:
            return {}
        return state


def _master_of(sentinel: RedisServer) -> int | None:
    return _state(sentinel).get("port")


def _knows_all(sentinel: RedisServer) -> bool:
    state = _state(sentinel)
    others, replicas = state.get("num-other-sentinels"), state.get("num-slaves")
    return (others, replicas, state.get("flags")) == (2, 2, "master")


@pytest.fixture(scope="session")
def redis_sentinel() -> Iterator[RedisSentinel]:
    require("redis")
    with RedisSentinel() as servers:
        yield servers


@pytest.fixture
def own_redis_sentinel() -> Iterator[RedisSentinel]:
    require("redis")
    with RedisSentinel() as servers:
        yield servers
