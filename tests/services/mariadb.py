"""A real MariaDB of our own: a free loopback port, its data in a temporary folder.

It does not like to run as root; started by root it runs as another user. ``mariadb_server`` is
shared by a whole run, so a test takes tables or a database of its own.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.ports import free_ports
from tests.services.require import require
from tests.services.server_process import ServerProcess

USER, DATABASE = "dlock", "dlock"

#: Run at each start before a connection is taken, since nobody else may make the user.
INIT = f"""
CREATE DATABASE IF NOT EXISTS {DATABASE};
CREATE USER IF NOT EXISTS '{USER}'@'127.0.0.1';
GRANT ALL ON *.* TO '{USER}'@'127.0.0.1';
"""

OPTIONS = (
    "--bind-address=127.0.0.1",
    "--skip-networking=off",
    "--skip-name-resolve",
    "--skip-log-bin",
    "--character-set-server=utf8mb4",
    "--innodb-buffer-pool-size=32M",
    "--innodb-log-file-size=16M",
    # What it says it has written stays through a kill, though not through a power cut.
    "--innodb-flush-log-at-trx-commit=2",
    "--innodb-doublewrite=off",
)


class MariadbServer(ServerProcess):
    """One server; whoever connects from this machine is believed to be who he says."""

    program = "mariadbd"
    runs_as = "mysql"

    def __init__(self, program: Path) -> None:
        super().__init__()
        (self.port,) = free_ports(1)
        self._program = program

    @property
    def url(self) -> str:
        """As SQLAlchemy takes it."""
        return f"mysql+pymysql://{USER}@127.0.0.1:{self.port}/{DATABASE}"

    @property
    def parameters(self) -> dict[str, Any]:
        """As ``pymysql.connect`` takes them."""
        return {"host": "127.0.0.1", "port": self.port, "user": USER, "database": DATABASE}

    def begin(self) -> None:
        data, init = self.folder / "data", self.folder / "init.sql"
        if not data.exists():
            self._install(data)
            init.write_text(INIT)
        files = (f"--datadir={data}", f"--socket={self.folder / 'socket'}", f"--init-file={init}")
        self.run(self._program, "--no-defaults", *files, f"--port={self.port}", *OPTIONS)

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as greeting:
                return bool(greeting.recv(1))  # it has run its init file by then
        except OSError:
            return False

    def _install(self, data: Path) -> None:
        install = [
            "mariadb-install-db",
            "--no-defaults",
            f"--datadir={data}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        ]
        done = subprocess.run(
            install, check=False, capture_output=True, text=True, **self.surroundings()
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(install)}: {done.stdout}{done.stderr}")


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariadbServer]:
    with MariadbServer(require("mariadb")) as server:
        yield server
