"""A real RabbitMQ of our own: free loopback ports, its data and its cookie in a temporary folder.

Erlang finds its nodes through a daemon, epmd, which outlives them; ours runs in the foreground on
a port of its own and goes with the server. Import the fixtures into a ``conftest.py``.
``rabbitmq_server`` is shared by a whole run, so a test takes queue names of its own;
``own_rabbitmq_server`` is for a test that kills it.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from kombu.connection import Connection

from tests.services.ports import free_ports
from tests.services.programs import PROGRAMS
from tests.services.require import require
from tests.services.server_process import ServerProcess
from tests.services.started import Started

#: Whose modules a node loads, all of them, as it starts; most of them first. It looks for each in
#: one folder after another, of which there are a hundred: half of what its start would cost.
LOADED = (
    *("rabbit", "kernel", "stdlib", "rabbit_common", "ssl", "compiler", "ra", "mnesia"),
    *("rabbitmq_prelaunch", "ranch", "inets", "sasl", "cuttlefish", "osiris", "public_key"),
    *("xmerl", "syslog", "sysmon_handler"),
)


class RabbitMQServer(Started):
    """One node, and the epmd that knows it."""

    def __init__(self) -> None:
        self.port, self._dist_port, self._epmd_port = free_ports(3)
        self._folder = Path()
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def start(self) -> None:
        if not self._folder.name:
            self._make_folder()
        log = self._folder / "log"
        with log.open("ab") as out:
            for command in (["epmd", "-address", "127.0.0.1"], [PROGRAMS["rabbitmq"].path]):
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    env=self._environment(),
                )
                self._processes.append(process)
        deadline = time.monotonic() + ServerProcess.start_within
        while not self._answers():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"rabbitmq-server did not start: {log.read_text()}")
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL to the node and its epmd, and return when they are gone."""
        while self._processes:
            process = self._processes.pop()
            process.kill()
            process.wait()

    def restart(self) -> None:
        """Kill, and start again on the same ports and folder."""
        self.kill()
        self.start()

    def will_find(self, queue: str) -> bool:
        """Whether the node, killed now, would come back with the quorum queue *queue*.

        It answers a declaration at once and writes the name some seconds later. Killed in between
        it never gets the queue back: whoever asks it runs into a timeout (seen with 3.10).
        """
        names = self._folder.glob("data/*/quorum/*/names.dets")
        return any(queue.encode() in path.read_bytes() for path in names)

    def stop(self) -> None:
        RabbitMQServer.kill(self)
        if self._folder.name:
            shutil.rmtree(self._folder)
            self._folder = Path()

    def _make_folder(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="dlock-rabbitmq-"))
        (self._folder / "plugins").write_text("[].")
        (self._folder / "env").touch()
        (self._folder / "applications").mkdir()
        (rabbit,) = _applications().glob("rabbit-*")
        (self._folder / "applications" / rabbit.name).symlink_to(rabbit)
        (self._folder / "server.conf").write_text("log.file.level = warning\n")

    def _environment(self) -> Mapping[str, str]:
        folder = str(self._folder)
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("RABBITMQ", "ERL"))}
        return {
            **inherited,
            "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
            "HOME": folder,
            # The node is then this very process, without a shell above it that outlives it
            "RUNNING_UNDER_SYSTEMD": "true",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"dlock{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}"
            # One scheduler that does not spin: it starts with a fifth less of the processor
            f" +S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none {_looked_in_first()}",
            "RABBITMQ_CONF_ENV_FILE": f"{folder}/env",
            "RABBITMQ_CONFIG_FILE": f"{folder}/server.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            # What is in it is looked in before all else; the server's schema has to be
            "RABBITMQ_PLUGINS_DIR": f"{folder}/applications",
            "RABBITMQ_MNESIA_BASE": f"{folder}/data",
            "RABBITMQ_LOG_BASE": f"{folder}/logs",
            "RABBITMQ_GENERATED_CONFIG_DIR": f"{folder}/generated",
            "RABBITMQ_PID_FILE": f"{folder}/pid",
        }

    def _answers(self) -> bool:
        with Connection(self.url, connect_timeout=5) as connection:
            try:
                # Its own connect() tries again after two seconds
                connection.transport.close_connection(connection.transport.establish_connection())
            except connection.connection_errors:
                return False
            return True


def _applications() -> Path:
    return Path(PROGRAMS["rabbitmq"].path).resolve().parents[1] / "plugins"


def _looked_in_first() -> str:
    """Options for the folders of :data:`LOADED`; the last one named is the first looked in."""
    erlang = Path(shutil.which("erl") or "").resolve().parents[1] / "lib"
    places = (_applications(), erlang)
    found = [next(each.glob(f"{name}-*/ebin"), None) for name in LOADED for each in places]
    return " ".join(f"-pa {folder}" for folder in reversed(found) if folder)


@pytest.fixture(scope="session")
def rabbitmq_server() -> Iterator[RabbitMQServer]:
    require("rabbitmq")
    with RabbitMQServer() as server:
        yield server


@pytest.fixture
def own_rabbitmq_server() -> Iterator[RabbitMQServer]:
    require("rabbitmq")
    with RabbitMQServer() as server:
        yield server
