"""A real redis-server of our own: a free loopback port, its data in a temporary folder.

Import the fixtures into a ``conftest.py``. ``redis_server`` is shared by a whole run, so a test
takes a key prefix of its own; ``own_redis_server`` is for a test that kills or pauses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.services.certificates import Authority, Signed
from tests.services.ports import free_ports
from tests.services.require import require
from tests.services.server_process import ServerProcess


class RedisServer(ServerProcess):
    """One server process. *options* are those of its command line, as in ``--appendonly yes``."""

    program = "redis-server"
    start_within = 30.0

    def __init__(self, *options: str) -> None:
        super().__init__()
        (self.port,) = free_ports(1)
        self._options = options

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def socket_path(self) -> str:
        return str(self.folder / "redis.sock")

    def client(self, patience: float = 5.0) -> redis.Redis:
        """A plain client, to look at what lies in the server; *patience* is for one answer."""
        return redis.Redis(port=self.port, socket_timeout=patience, retry=Retry(NoBackoff(), 0))

    def begin(self) -> None:
        self.run(*self.command())

    def command(self) -> list[str]:
        """What is run."""
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(self.port), "--save", ""]
        folder = str(self.folder)
        return [*command, "--dir", folder, "--unixsocket", self.socket_path, *self._options]

    def info(self, section: str) -> dict[str, Any]:
        """What the server says of itself."""
        with self.client() as client:
            found: dict[str, Any] = client.info(section)
            return found

    def answers(self) -> bool:
        with self.client() as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False


@contextmanager
def speaking_tls(authority: Authority, signed: Signed) -> Iterator[tuple[RedisServer, int]]:
    """A server that shows what *authority* has *signed*, and the port at which it does."""
    (port,) = free_ports(1)
    options = ("--tls-port", str(port), "--tls-auth-clients", "no")
    files = {"cert": signed.certificate, "key": signed.key, "ca-cert": authority.file}
    given = [word for name, file in files.items() for word in (f"--tls-{name}-file", str(file))]
    with RedisServer(*options, *given) as server:
        yield server, port


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    require("redis")
    with RedisServer() as server:
        yield server


@pytest.fixture
def own_redis_server() -> Iterator[RedisServer]:
    require("redis")
    with RedisServer() as server:
        yield server
