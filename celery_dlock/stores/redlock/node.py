"""The nodes of a Redlock: which ones a URL names, and each of them as this process sees it.

Nobody waits for a node that is in trouble. A thread tries it again and again, and ends when it is
back, or when nobody has asked for it meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import redis

from celery_dlock.errors import ConfigurationError
from celery_dlock.stores.redis.client import (
    RedisSession,
    Servers,
    database,
    pool_options,
    try_options,
)
from celery_dlock.stores.redis.scripts import refused_command

PORT = 6379
FEWEST = 3

#: Seconds that a node has to answer in at most, and the part of ``dlock_ttl`` that this may be: to
#: wait for a slow node uses up the time of those that have answered. The driver's options and the
#: URL's query override it.
NODE_TIMEOUT, OF_A_LEASE = 1.0, 0.1

#: Seconds between two tries of a node that is unavailable, at first and at most.
REST_FIRST, REST_LONGEST = 0.1, 5.0

#: So many releases at most are kept for a node that is unavailable.
MOST_UNSAID = 1000

#: The reply of a node that takes no claim before it is told what the others know.
FORGOT = -3


class Refusal(Exception):
    """The node answered with an error: its first word, and the command if that is refused."""

    def __init__(self, text: str) -> None:
        code, command = text.partition(" ")[0], refused_command(text)
        code = code if code.isascii() and code.isupper() else "ERR"
        super().__init__(f"refuses {command}: {code}" if command else code)


#: What a broken connection raises, or one that never came to be.
BROKEN = (OSError, redis.RedisError, ValueError, Refusal)


@dataclass(frozen=True, slots=True)
class Nodes:
    """How to connect to each node, with redis-py's options; ``queue`` is the number of one.

    All of them have the same user, password, database and options.
    """

    connection: type[Any]
    options: tuple[Mapping[str, Any], ...]
    queue: int

    @classmethod
    def of(cls, url: str, driver: Mapping[str, Any], ttl: float) -> Self:
        """What *url* says, for leases of *ttl* seconds.

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
        patience = min(NODE_TIMEOUT, OF_A_LEASE * ttl)
        limits = {"socket_timeout": patience, "socket_connect_timeout": patience}
        options = {**pool_options({**limits, **driver}), **servers.options}
        connection = options.pop("connection_class", redis.Connection)
        queue = _queue(servers, options.pop("queue", None))
        options |= {"db": database(servers.path), "protocol": 2}
        try_options(connection, options)
        by_node = tuple({**options, "host": host, "port": port} for host, port in servers.addresses)
        return cls(connection, by_node, queue)

    def session(self, driver: Mapping[str, Any]) -> RedisSession:
        """A session with the queue's node, which has as long to answer as any single Redis."""
        options = {**self.options[self.queue]}
        for name in ("socket_timeout", "socket_connect_timeout"):
            options[name] = pool_options(driver)[name]
        pool = redis.ConnectionPool(connection_class=self.connection, **options)
        place = f"{options['host']}:{options['port']}, database {options['db']}"
        return RedisSession(redis.Redis(connection_pool=pool), place, [options.get("password")])


def _queue(servers: Servers, place: str | None) -> int:
    if place is None:
        return 0
    (address,) = Servers.of(f"redlock://{place}", PORT).addresses
    if address not in servers.addresses:
        nodes = ", ".join(f"{host}:{port}" for host, port in servers.addresses)
        raise ConfigurationError(f"queue= of a redlock:// URL is none of its nodes: {nodes}")
    return servers.addresses.index(address)


class RedlockNode:
    """What the connections of a process to one node share."""

    def __init__(self, connection: type[Any], options: Mapping[str, Any]) -> None:
        self.timeout: float = options["socket_timeout"]
        self.place = f"{options['host']}:{options['port']}"
        self.trouble = ""
        self.forgot = False  # it has to be told what the others know
        self._connection = connection
        self._options = options
        self._mutex = threading.Lock()
        self._unavailable = False
        self._wanted = False
        self._unsaid: deque[tuple[float, bytes]] = deque(maxlen=MOST_UNSAID)

    def is_unavailable(self) -> bool:
        """Whether to do without it."""
        self._wanted = self._unavailable
        return self._unavailable

    def redis_connection(self) -> Any:
        """A connection of redis-py's, not open yet."""
        return self._connection(**self._options)

    def failed(self, error: Exception) -> None:
        """Do without it until it has answered somebody who has the time to wait."""
        # Servers and proxies quote what they did not understand, and that may be a password.
        self.trouble = str(error) if isinstance(error, Refusal) else type(error).__name__
        with self._mutex:
            if self._unavailable:
                return
            self._unavailable = True
        threading.Thread(target=self._wait_for_it, name="celery-dlock-node", daemon=True).start()

    def owe(self, command: bytes, lease: float) -> None:
        """Keep *command*, which did not get through, until the node is back or *lease* is over."""
        self._unsaid.append((time.monotonic() + lease, command))

    def unsaid(self) -> Iterator[bytes]:
        """The commands that are kept for it; each is returned once."""
        while True:
            try:
                until, command = self._unsaid.popleft()
            except IndexError:
                return
            if until > time.monotonic():
                yield command

    def _wait_for_it(self) -> None:
        rest = REST_FIRST
        try:
            while True:
                self._wanted = False
                time.sleep(rest)
                if self._answers() or (rest >= REST_LONGEST and not self._wanted):
                    return
                rest = min(2 * rest, REST_LONGEST)
        finally:
            self._unavailable = False

    def _answers(self) -> bool:
        connection = self.redis_connection()
        try:
            connection.connect()
            connection.send_command("PING")
            return bool(connection.read_response() == b"PONG")
        except BROKEN:
            return False
        finally:
            with suppress(*BROKEN):
                connection.disconnect()
