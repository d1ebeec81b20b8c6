"""A Redis that fails over, of either kind: where a key lies, and how its master is taken away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from celery_dlock.registry import open_backend
from celery_dlock.stores.base import BackendOptions, LockBackend
from celery_dlock.stores.redis.wire import base_name
from tests.services.redis import RedisServer
from tests.services.redis_cluster import RedisCluster
from tests.services.redis_sentinel import RedisSentinel
from tests.services.until import until

PREFIX = "failover"

#: An answer that is late is not waited for: the tests are about failovers, not about timeouts.
DRIVER = {"socket_timeout": 0.5, "socket_connect_timeout": 0.5}


@dataclass(frozen=True)
class Failover:
    """*kind* is the URL's scheme; *servers* are whose URL it is."""

    kind: str
    servers: RedisSentinel | RedisCluster

    def open(self, **options: Any) -> LockBackend:
        options.setdefault("driver", DRIVER)
        return open_backend(self.servers.url, BackendOptions(prefix=PREFIX, **options))

    def master(self, key: str) -> RedisServer:
        if isinstance(self.servers, RedisSentinel):
            return self.servers.master
        return self.servers.master_of(base_name(PREFIX, key))

    def followers(self, master: RedisServer) -> list[RedisServer]:
        if isinstance(self.servers, RedisSentinel):
            return self.servers.replicas
        return [self.servers.replica_of(master)]


@contextmanager
def sentinel() -> Iterator[Failover]:
    with RedisSentinel() as servers:
        yield Failover("redis+sentinel", servers)


@contextmanager
def cluster() -> Iterator[Failover]:
    with RedisCluster() as servers:
        yield Failover("redis+cluster", servers)


@contextmanager
def out_of_touch(master: RedisServer, followers: list[RedisServer]) -> Iterator[None]:
    """In the block the followers learn nothing; they come back without a link to the master."""
    for follower in followers:
        follower.pause()
    try:
        with master.client() as client:
            client.client_kill_filter(_type="replica")
            until("no link is left", lambda: master.info("replication")["connected_slaves"] == 0)
        yield
    finally:
        for follower in followers:
            follower.resume()
