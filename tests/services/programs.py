"""The programs that the tests start: where they lie, and which Debian package has them.

``python tests/services/programs.py`` prints the packages that are missing here, one a line.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple


class Program(NamedTuple):
    """*path* is a name to look for in ``PATH``, or a pattern from the root; *package* is apt's."""

    path: str
    package: str

    def found(self) -> Path | None:
        """The newest there is."""
        if self.path.startswith("/"):
            return max(Path("/").glob(self.path[1:]), default=None, key=_by_version)
        here = shutil.which(self.path, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        return Path(here) if here else None


def _by_version(path: Path) -> list[int]:
    return [int(part) for part in path.parts if part.isdecimal()]


#: By the name that ``pytest.mark.server`` takes.
PROGRAMS: dict[str, Program] = {
    "redis": Program("redis-server", "redis-server"),
    # The one in PATH asks for its own user.
    "rabbitmq": Program("/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server"),
    "zookeeper": Program("/usr/share/java/zookeeper.jar", "zookeeper"),
    "etcd": Program("etcd", "etcd-server"),
    # The one in PATH is a wrapper around the distribution's own clusters.
    "postgresql": Program(
        f"{os.environ.get('DLOCK_POSTGRESQL', '/usr/lib/postgresql/*')}/bin/postgres", "postgresql"
    ),
    "pgbouncer": Program("pgbouncer", "pgbouncer"),
    "mariadb": Program("mariadbd", "mariadb-server"),
    "prometheus": Program("prometheus", "prometheus"),
    "promtool": Program("promtool", "prometheus"),
    "chromium": Program("chromium", "chromium"),
    "chromedriver": Program("chromedriver", "chromium-driver"),
    # No server: pip builds mysqlclient with it.
    "mysqlclient": Program("mariadb_config", "libmariadb-dev"),
    # They build what machine.py puts below a server.
    "gcc": Program("gcc", "gcc"),
    "libc": Program("/usr/include/stdio.h", "libc6-dev"),
}

if __name__ == "__main__":
    for program in PROGRAMS.values():
        if program.found() is None:
            print(program.package)  # noqa: T201
