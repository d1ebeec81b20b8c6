"""The nodes that a URL names: ``redlock://[[user]:password@]host[:port],host[:port],…[/db]``.

All of them have the same user, password, database and options.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import redis

from celery_dlock.backends.redis_client import Session, pool_options
from celery_dlock.backends.redis_url import Servers, database, try_options
from celery_dlock.errors import ConfigurationError

PORT = 6379
FEWEST = 3

#: Seconds that a node has to answer in; the driver's options and the URL's query override them.
#: Small against a lease: who waits for a slow node uses up the time of those that have answered.
NODE_TIMEOUT = 1.0


@dataclass(frozen=True, slots=True)
class Nodes:
    """How to connect to each node, with redis-py's options; ``queue`` is the number of one."""

    connection: type[Any]
    options: tuple[Mapping[str, Any], ...]
    queue: int

    @classmethod
    def of(cls, url: str, driver: Mapping[str, Any]) -> Self:
        """What *url* says.

        Raises :exc:`~celery_dlock.ConfigurationError` for fewer than three nodes, for one that is
        named twice, and for a queue that is on none of them. An even number is as safe as the odd
        one below it, and bears the loss of no more nodes.
        """
        servers = Servers.of(url, PORT)
        if len(servers.addresses) < FEWEST:
            raise ConfigurationError(
                "redlock:// needs at least three nodes, as in redlock://a:6379,b:6379,c:6379/0"
            )
        if len(set(servers.addresses)) < len(servers.addresses):
            raise ConfigurationError("a node of a redlock:// URL has one vote: name it only once")
        limits = {"socket_timeout": NODE_TIMEOUT, "socket_connect_timeout": NODE_TIMEOUT}
        options = {**pool_options({**limits, **driver}), **servers.options}
        connection = options.pop("connection_class", redis.Connection)
        queue = _queue(servers, options.pop("queue", None))
        options |= {"db": database(servers.path), "protocol": 2}
        try_options(connection, options)
        each = tuple({**options, "host": host, "port": port} for host, port in servers.addresses)
        return cls(connection, each, queue)

    def session(self, driver: Mapping[str, Any]) -> Session:
        """A session with the queue's node, which has as long to answer as any single Redis."""
        options = {**self.options[self.queue]}
        for name in ("socket_timeout", "socket_connect_timeout"):
            options[name] = pool_options(driver)[name]
        pool = redis.ConnectionPool(connection_class=self.connection, **options)
        place = f"{options['host']}:{options['port']}, database {options['db']}"
        return Session(redis.Redis(connection_pool=pool), place, [options.get("password")])


def _queue(servers: Servers, place: str | None) -> int:
    if place is None:
        return 0
    (address,) = Servers.of(f"redlock://{place}", PORT).addresses
    if address not in servers.addresses:
        raise ConfigurationError("the queue of a redlock:// URL is on one of its nodes")
    return servers.addresses.index(address)
