"""A PostgreSQL server of the demo's own, which listens on no port and leaves nothing behind."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

from example_project.command import Failed

#: All sides connect at once, and a process that is stopped must not keep its key by a transaction.
SETTINGS = ("max_connections=200", "idle_in_transaction_session_timeout=5s", "listen_addresses=")


@contextmanager
def running() -> Iterator[Callable[[str], str]]:
    """Makes an empty database, given its name, and returns its URL; all have gone at the end."""
    with tempfile.TemporaryDirectory(prefix="dlock-postgresql-") as name:
        options = _not_as_root(Path(name))
        initdb = (_program("initdb"), "--username=shop", "--auth=trust", "--no-sync", "data")
        subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, **options)
        settings = [word for setting in SETTINGS for word in ("-c", setting)]
        command = (_program("postgres"), "-D", "data", "-k", name, "-F", *settings)
        with Path(name, "log").open("wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log, **options)
        try:
            _wait_for(server, Path(name))
            yield lambda database: _make(database, Path(name))
        finally:
            server.send_signal(signal.SIGQUIT)
            server.wait()


def _make(database: str, folder: Path) -> str:
    with psycopg.connect(_url("postgres", folder), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database}".encode())
    return _url(database, folder)


def _url(database: str, folder: Path) -> str:
    return f"postgresql://shop@/{database}?host={folder}"


def _wait_for(server: subprocess.Popen[bytes], folder: Path) -> None:
    while server.poll() is None:
        with suppress(psycopg.OperationalError), psycopg.connect(_url("postgres", folder)):
            return
        time.sleep(0.05)
    raise Failed(f"PostgreSQL has not started:\n{(folder / 'log').read_text()}")


def _program(name: str) -> str:
    """Debian has it outside of the path."""
    folders = [*os.get_exec_path(), *map(str, Path("/usr/lib/postgresql").glob("*/bin"))]
    if program := shutil.which(name, path=os.pathsep.join(folders)):
        return program
    raise Failed(
        f"there is no {name}: install PostgreSQL (Debian and Ubuntu: apt install postgresql)"
    )


def _not_as_root(folder: Path) -> dict[str, Any]:
    """PostgreSQL refuses to be root, who runs it as the user of the distribution's package."""
    options: dict[str, Any] = {"cwd": folder, "start_new_session": True}
    if os.geteuid() != 0:
        return options
    user = pwd.getpwnam("postgres")
    os.chown(folder, user.pw_uid, user.pw_gid)
    return {**options, "user": user.pw_uid, "group": user.pw_gid, "extra_groups": ()}
