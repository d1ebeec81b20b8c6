"""A Redis Cluster of three masters, each with a replica, as processes of our own.

Import the fixtures into a ``conftest.py``. ``redis_cluster`` is shared by a whole run, so a test
takes a key prefix of its own; ``own_redis_cluster`` is for a test that kills or pauses a server, or
moves slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pytest
import redis

from tests.services.redis import RedisServer
from tests.services.require import require
from tests.services.started import Started
from tests.services.until import until

MASTERS = 3
SLOTS = 16384

#: Milliseconds without an answer until the others take a server for gone.
NODE_TIMEOUT = 1000


@dataclass(frozen=True)
class Node:
    """A server as another one of the cluster knows it."""

    ident: str
    port: int
    flags: frozenset[str]
    master: str


class RedisCluster(Started):
    """*options* are those of the command line of each of the six servers."""

    def __init__(self, *options: str) -> None:
        cluster = ("--cluster-enabled", "yes", "--cluster-node-timeout", str(NODE_TIMEOUT))
        quick = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
        self.servers = [RedisServer(*cluster, *quick, *options) for _ in range(2 * MASTERS)]
        self._running = ExitStack()

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{s.port}" for s in self.servers)

    def start(self) -> None:
        """Start, and return when every slot is served and a failover is possible."""
        for server in self.servers:
            self._running.callback(server.stop)
            server.begin()
        for server in self.servers:
            server.wait()
        masters, replicas = self.servers[:MASTERS], self.servers[MASTERS:]
        for number, master in enumerate(masters):
            first, end = (SLOTS * n // MASTERS for n in (number, number + 1))
            tell(master, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            tell(master, "CLUSTER", "ADDSLOTS", *range(first, end))
        for one, other in combinations(self.servers, 2):  # rather than to wait for gossip
            tell(one, "CLUSTER", "MEET", "127.0.0.1", other.port)
        until("they know each other", lambda: all(map(_knows_all, self.servers)))
        for master, replica in zip(masters, replicas, strict=True):
            tell(replica, "CLUSTER", "REPLICATE", ident(master))
        until("all slots are served", self.is_whole)

    def is_whole(self) -> bool:
        """Whether every server says that all is well, and every replica follows its master."""
        told = [tell(server, "CLUSTER", "INFO") for server in self.servers]
        masters = {node.port for node in nodes(self.servers[0]) if "master" in node.flags}
        roles = [server.info("replication") for server in self.servers]
        linked = [role.get("master_link_status") for role in roles if role["role"] == "slave"]
        ok = all(b"cluster_state:ok" in info for info in told)
        return ok and len(masters) == MASTERS and linked == ["up"] * MASTERS

    def wipe(self) -> None:
        """Kill all of them, and make a new cluster at the same addresses."""
        for server in self.servers:
            server.stop()
        self.start()

    def master_of(self, name: str) -> RedisServer:
        """The server that most of those who answer take for the one that has the key *name*."""
        told = [port for server in self.servers if (port := _owner(server, name))]
        port = max(set(told), key=told.count)
        return next(server for server in self.servers if server.port == port)

    def replica_of(self, master: RedisServer) -> RedisServer:
        """The one that takes over."""
        known = nodes(master)
        mine = next(node.ident for node in known if node.port == master.port)
        port = next(node.port for node in known if node.master == mine)
        return next(server for server in self.servers if server.port == port)

    def stop(self) -> None:
        self._running.close()


def tell(server: RedisServer, *command: Any) -> Any:
    """What *server* answers to *command*."""
    with server.client() as client:
        return client.execute_command(*command)


def nodes(server: RedisServer) -> list[Node]:
    """All servers of the cluster as far as *server* knows."""
    rows = [line.split() for line in tell(server, "CLUSTER", "NODES").decode().splitlines()]
    return [
        Node(name, int(address.split("@")[0].split(":")[1]), frozenset(flags.split(",")), master)
        for name, address, flags, master, *_ in rows
    ]


def ident(server: RedisServer) -> str:
    """By which name the others know *server*."""
    return next(node.ident for node in nodes(server) if node.port == server.port)


def _knows_all(server: RedisServer) -> bool:
    known = nodes(server)
    return len(known) == 2 * MASTERS and not any("handshake" in node.flags for node in known)


def _owner(server: RedisServer, name: str) -> int | None:
    try:
        slot = tell(server, "CLUSTER", "KEYSLOT", name)
        ranges = tell(server, "CLUSTER", "SLOTS")
    except redis.RedisError:
        return None
    return next((owner[1] for first, last, owner, *_ in ranges if first <= slot <= last), None)


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    require("redis")
    with RedisCluster() as servers:
        yield servers


@pytest.fixture
def own_redis_cluster() -> Iterator[RedisCluster]:
    require("redis")
    with RedisCluster() as servers:
        yield servers
