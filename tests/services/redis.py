"""A real redis-server of our own: a free loopback port, its data in a temporary folder.

Import the fixtures into a ``conftest.py``. ``redis_server`` is shared by a whole run, so a test
takes a key prefix of its own; ``own_redis_server`` is for a test that kills or pauses it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
import redis

from tests.services.ports import free_ports

START_WITHIN = 10.0


class RedisServer:
    """One server process. *options* are those of its command line, as in ``--appendonly yes``."""

    def __init__(self, *options: str) -> None:
        (self.port,) = free_ports(1)
        self._options = options
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def socket_path(self) -> str:
        assert self._folder is not None
        return str(Path(self._folder.name) / "redis.sock")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def client(self) -> redis.Redis:
        """A plain client, to look at what lies in the server."""
        return redis.Redis(port=self.port)

    def start(self) -> None:
        """Start, and return when it answers."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="dlock-redis-")
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(self.port), "--save", ""]
        command += ["--dir", self._folder.name, "--unixsocket", self.socket_path, *self._options]
        log = Path(self._folder.name) / "log"
        with log.open("ab") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out)
        deadline = time.monotonic() + START_WITHIN
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"redis-server did not start: {log.read_text()}")
            time.sleep(0.01)

    def kill(self) -> None:
        """SIGKILL, and return when it is gone. What was not on disk is lost."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Kill, and start again on the same port and folder."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """Gone, its folder too."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _answers(self) -> bool:
        with self.client() as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False


def require_redis() -> None:
    """Skip where redis-server is not installed, fail where it has to be."""
    if shutil.which("redis-server"):
        return
    reason = "redis-server is not installed (Debian and Ubuntu: apt install redis-server)"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    require_redis()
    with RedisServer() as server:
        yield server


@pytest.fixture
def own_redis_server() -> Iterator[RedisServer]:
    require_redis()
    with RedisServer() as server:
        yield server
