"""A PgBouncer of our own before a PostgreSQL: by default it shares connections by transactions."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.ports import free_ports
from tests.services.postgresql import DATABASE, USER, PostgresqlServer
from tests.services.require import require
from tests.services.server_process import ServerProcess

#: Connections to the server, which all clients share.
POOL = 4


class PgBouncer(ServerProcess):
    """It lets anybody in, as the server does."""

    program = "pgbouncer"
    runs_as = "postgres"

    def __init__(
        self, program: Path, server: PostgresqlServer, pool_mode: str = "transaction"
    ) -> None:
        super().__init__()
        self._pool_mode = pool_mode
        (self.port,) = free_ports(1)
        self._program = program
        self._server = server

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{DATABASE}"

    def begin(self) -> None:
        settings = self.folder / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n{DATABASE} = host=127.0.0.1 port={self._server.port} user={USER}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\n"
            f"unix_socket_dir =\nauth_type = any\npool_mode = {self._pool_mode}\n"
            f"default_pool_size = {POOL}\nmax_client_conn = 200\n",
            encoding="utf-8",
        )
        settings.chmod(0o644)
        self.run(self._program, settings)

    def answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True


@pytest.fixture(scope="session")
def pgbouncer(postgresql_server: PostgresqlServer) -> Iterator[PgBouncer]:
    with PgBouncer(require("pgbouncer"), postgresql_server) as pooler:
        yield pooler
