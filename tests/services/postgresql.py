"""A real PostgreSQL of our own: a free loopback port, its data in a temporary folder.

It refuses to run as root; started by root it runs as another user. Import the fixtures into a
``conftest.py``. ``postgresql_server`` is shared by a whole run, so a test takes tables of its own;
``own_postgresql_server`` is for a test that kills it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.services.ports import free_ports
from tests.services.require import require
from tests.services.server_process import ServerProcess
from tests.services.until import until

USER, DATABASE = "dlock", "postgres"


class PostgresqlServer(ServerProcess):
    """One server; whoever connects from this machine is believed to be who he says."""

    program = "postgresql"
    runs_as = "postgres"

    def __init__(self, programs: Path, *, syncs: bool = False) -> None:
        super().__init__()
        self._syncs = syncs
        (self.port,) = free_ports(1)
        self._programs = programs

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{DATABASE}"

    def begin(self) -> None:
        data = self.folder / "data"
        if not (data / "PG_VERSION").exists():
            self._install(data)
        # -F: what it says it has written stays through a kill, though not through a power cut
        unsynced = [] if self._syncs else ["-F"]
        options = ["-h", "127.0.0.1", "-p", str(self.port), "-k", str(self.folder), *unsynced]
        options += ["-c", "search_path=public"]  # without a schema that is named like the role
        self.run(self._programs / "postgres", "-D", data, *options)

    def answers(self) -> bool:
        ready = [str(self._programs / "pg_isready"), "-q", "-d", self.url]
        return subprocess.run(ready, check=False).returncode == 0

    def kill(self) -> None:
        """SIGKILL to the server and to the processes of its connections; they are gone then."""
        children = []
        if self.running:
            self.pause()  # or it begins one more while these are counted
            children = psutil.Process(self.pid).children()
        for process in children:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        super().kill()
        psutil.wait_procs(children)

    def query(self, statement: str) -> str:
        """What ``psql`` prints for *statement*, without any decoration."""
        psql = [str(self._programs / "psql"), "-X", "-q", "-A", "-t", "-d", self.url]
        done = subprocess.run([*psql, "-c", statement], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def execute(self, script: str) -> None:
        """All of *script*, such as :meth:`dump` gives, or nothing of it."""
        psql = [str(self._programs / "psql"), "-X", "-q", "-1", "-v", "ON_ERROR_STOP=1"]
        subprocess.run([*psql, "-d", self.url], input=script.encode(), check=True)

    def dump(self, schema: str) -> str:
        """The statements that make *schema* anew, with all that is in it."""
        pg_dump = [str(self._programs / "pg_dump"), "-n", schema, "--inserts", "-O", "-x"]
        done = subprocess.run([*pg_dump, "-d", self.url], capture_output=True, check=True)
        return done.stdout.decode()

    def configure(self, **settings: str) -> None:
        """Change *settings* of the server, for those that need no restart."""
        for name, value in settings.items():
            self.query(f"ALTER SYSTEM SET {name} = '{value}'")
        self.query("SELECT pg_reload_conf()")

    def _install(self, data: Path) -> None:
        options = ["--username", USER, "--auth", "trust", "--encoding", "UTF8", "--locale", "C"]
        initdb = [str(self._programs / "initdb"), "--no-sync", *options, "-D", str(data)]
        subprocess.run(initdb, check=True, capture_output=True, **self.surroundings())


class PostgresqlStandby(PostgresqlServer):
    """A hot standby of *primary*, which it follows until it is promoted."""

    def __init__(self, programs: Path, primary: PostgresqlServer) -> None:
        super().__init__(programs)
        self._primary = primary

    def promote(self) -> None:
        """Return when it takes writes."""
        assert self.query("SELECT pg_promote()") == "t"

    def _install(self, data: Path) -> None:
        backup = [str(self._programs / "pg_basebackup"), "--no-sync", "--checkpoint=fast"]
        origin = ["--write-recovery-conf", "-d", self._primary.url, "-D", str(data)]
        subprocess.run([*backup, *origin], check=True, capture_output=True, **self.surroundings())


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgresqlServer]:
    with PostgresqlServer(require("postgresql").parent) as server:
        yield server


@pytest.fixture
def own_postgresql_server() -> Iterator[PostgresqlServer]:
    with PostgresqlServer(require("postgresql").parent) as server:
        yield server


@pytest.fixture
def postgresql_standby(own_postgresql_server: PostgresqlServer) -> Iterator[PostgresqlStandby]:
    """One that follows ``own_postgresql_server``."""
    with PostgresqlStandby(require("postgresql").parent, own_postgresql_server) as standby:
        streams = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
        until("it follows", lambda: own_postgresql_server.query(streams) == "1")
        yield standby
