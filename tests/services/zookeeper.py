"""A real ZooKeeper of our own: free loopback ports, its data in a temporary folder.

Import the fixtures into a ``conftest.py``. ``zookeeper_server`` is shared by a whole run, so a test
takes a prefix of its own; ``own_zookeeper_server`` is for a test that kills or pauses it. A tick is
short, so that sessions of a second or two can be asked for.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress

import pytest

from tests.services.ports import free_ports
from tests.services.require import require
from tests.services.server_process import ServerProcess

#: Milliseconds. A session lasts from 2 to 20 ticks, whatever is asked for.
TICK = 500

JAVA = [
    *("java", "-Xmx96m", "-Xms32m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"),
    *("-Dzookeeper.preAllocSize=1024", "-Dzookeeper.jmx.log4j.disable=true"),
]
MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


class ZooKeeperServer(ServerProcess):
    """One server process. *options* are lines of its configuration file, as in ``tickTime``."""

    program = "zookeeper"

    def __init__(self, **options: object) -> None:
        super().__init__()
        (self.port,) = free_ports(1)
        self.options: dict[str, object] = {
            "tickTime": TICK,
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "4lw.commands.whitelist": "*",
            "admin.enableServer": "false",
            "maxClientCnxns": 0,
            **options,
        }
        #: A member's number within its ensemble.
        self.number: int | None = None
        self.properties: Mapping[str, str] = {}

    @property
    def url(self) -> str:
        return f"zookeeper://{self.address}"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def mode(self) -> str | None:
        """``standalone``, ``leader``, ``follower``, or ``None`` while it serves nobody."""
        for line in self.ask("srvr").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ")
        return None

    def ask(self, word: str, timeout: float = 1.0) -> str:
        """The answer to a four-letter word, empty if there is none."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout) as line:
            line.settimeout(timeout)
            line.sendall(word.encode())
            return b"".join(iter(lambda: line.recv(65536), b"")).decode()
        return ""

    def monitored(self, name: str) -> int:
        """One of the figures of ``mntr``, without its ``zk_``."""
        lines = (line.split("\t") for line in self.ask("mntr").splitlines())
        return next(int(float(line[1])) for line in lines if line[0] == f"zk_{name}")

    def begin(self) -> None:
        config = self.folder / "zoo.cfg"
        data = self._data
        data.mkdir(exist_ok=True)
        if self.number is not None:
            (data / "myid").write_text(str(self.number))
        lines = {**self.options, "dataDir": data}
        config.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        properties = [f"-D{name}={value}" for name, value in self.properties.items()]
        jar = require("zookeeper")
        # Debian's jar names all others that it needs, but for one that TLS needs.
        jars = f"{jar}:{jar.with_name('netty-codec.jar')}"
        self.run(*JAVA, *properties, "-cp", jars, MAIN, str(config))

    def answers(self) -> bool:
        return self.mode is not None

    def wipe(self) -> None:
        """Lose the data of a server that is dead."""
        shutil.rmtree(self._data)


@pytest.fixture(scope="session")
def zookeeper_server() -> Iterator[ZooKeeperServer]:
    require("zookeeper")
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def own_zookeeper_server() -> Iterator[ZooKeeperServer]:
    require("zookeeper")
    with ZooKeeperServer() as server:
        yield server
