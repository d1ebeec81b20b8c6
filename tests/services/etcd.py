"""A real etcd of our own: free loopback ports, its data in a temporary folder.

Import the fixtures into a ``conftest.py``. ``etcd_server`` is shared by a whole run, so a test
takes a key prefix of its own; ``own_etcd_server`` is for a test that kills or pauses it.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.services.ports import free_ports
from tests.services.require import require
from tests.services.server_process import ServerProcess

_HANDLED = re.compile(r'grpc_server_handled_total\{.*grpc_method="(\w+)".*\} ([0-9.e+]+)')

_SYNCS = re.compile(r"^etcd_disk_wal_fsync_duration_seconds_count ([0-9.e+]+)$", re.MULTILINE)


class EtcdServer(ServerProcess):
    """One member, alone or of a cluster. *options* are those of its command line.

    What it has said it has written stays through a kill, though not through a power cut: it does
    not wait for the disk. A password is hashed as cheaply as it can be: each client costs one. Its
    threads do not look for work of each other's: one runs at a time, and has little to do.
    """

    program = "etcd"

    def __init__(self, *options: str, name: str = "alone") -> None:
        super().__init__()
        self.name = name
        self.port, self._watched_port = free_ports(2)
        self.move()
        self._options = options
        self._founders: tuple[EtcdServer, ...] = (self,)
        self._state = "new"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"etcd://{self.address}"

    def move(self) -> None:
        """Be somewhere else for its peers from the next start on."""
        (self.peer_port,) = free_ports(1)
        self.peer_url = f"http://127.0.0.1:{self.peer_port}"

    def joins(self, founders: tuple[EtcdServer, ...], state: str = "new") -> None:
        """Be a member of the cluster of *founders* from the next start on."""
        self._founders, self._state = founders, state

    def begin(self) -> None:
        tls = any(option.startswith("--cert-file") for option in self._options)
        scheme = "https" if tls else "http"
        command = [str(require("etcd")), "--unsafe-no-fsync", "--bcrypt-cost=4"]
        command += ["--logger=zap", "--name", self.name]
        command += ["--data-dir", str(self._data)]
        command += ["--listen-client-urls", f"{scheme}://{self.address}"]
        command += ["--advertise-client-urls", f"{scheme}://{self.address}"]
        command += ["--listen-peer-urls", f"http://127.0.0.1:{self.peer_port}"]
        command += ["--initial-advertise-peer-urls", self.peer_url]
        cluster = ",".join(f"{member.name}={member.peer_url}" for member in self._founders)
        command += ["--initial-cluster", cluster, "--initial-cluster-state", self._state]
        command += ["--listen-metrics-urls", f"http://127.0.0.1:{self._watched_port}"]
        self.run(*command, *self._options)

    def surroundings(self) -> Mapping[str, Any]:
        return {**super().surroundings(), "env": {**os.environ, "GOMAXPROCS": "1"}}

    def wipe(self) -> None:
        """Forget everything; for one that does not run."""
        shutil.rmtree(self._data)

    def answers(self) -> bool:
        """Whether it takes part in a cluster with a leader."""
        try:
            return bool(json.loads(self._watched("health"))["health"] == "true")
        except (OSError, urllib.error.URLError):
            return False

    def handled(self) -> Counter[str]:
        """How many calls of each gRPC method it has answered."""
        counts: Counter[str] = Counter()
        for method, count in _HANDLED.findall(self._watched("metrics").decode()):
            counts[method] += int(float(count))
        return +counts

    def syncs(self) -> int:
        """How often it has waited for the disk of its log."""
        (count,) = _SYNCS.findall(self._watched("metrics").decode())
        return int(float(count))

    def ask(self, path: str, **fields: Any) -> dict[str, Any]:
        """Its JSON gateway, as in ``ask("maintenance/status")``."""
        request = urllib.request.Request(
            f"http://{self.address}/v3/{path}", json.dumps(fields).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def lets_in(self, password: str, prefix: str) -> None:
        """From now on two users alone: ``root``, and ``worker`` for what begins with *prefix*."""
        first = prefix.encode()
        end = first[:-1] + bytes([first[-1] + 1])
        key, range_end = (base64.b64encode(name).decode() for name in (first, end))
        permission = {"permType": "READWRITE", "key": key, "range_end": range_end}
        self.ask("auth/role/add", name="locks")
        self.ask("auth/role/grant", name="locks", perm=permission)
        for user, role in (("root", "root"), ("worker", "locks")):
            self.ask("auth/user/add", name=user, password=password)
            self.ask("auth/user/grant", user=user, role=role)
        self.ask("auth/enable")

    def _watched(self, path: str) -> bytes:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self._watched_port}/{path}", timeout=2
        ) as answer:
            found: bytes = answer.read()
            return found


@pytest.fixture(scope="session")
def etcd_server() -> Iterator[EtcdServer]:
    with EtcdServer() as server:
        yield server


@pytest.fixture
def own_etcd_server() -> Iterator[EtcdServer]:
    with EtcdServer() as server:
        yield server
