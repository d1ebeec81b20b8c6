"""A machine that does as a test says: its power is cut, its disk is slow or full, its clock steps.

It is ``machine.c``, built once a run, between a program and its libc. A program that makes its
system calls itself, as those in Go do, does not notice. Where a sync has not been answered nothing
is left of what was written since the one before: a disk may keep more, and in any order.
"""

from __future__ import annotations

import atexit
import mmap
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from tests.services.postgresql import PostgresqlServer
from tests.services.redis import RedisServer
from tests.services.require import require
from tests.services.server_process import ServerProcess
from tests.services.zookeeper import ZooKeeperServer

SOURCE = Path(__file__).with_suffix(".c")

#: Where in what the machine is told.
CLOCK, SYNC_TAKES, FULL, SYNCS = range(4)


@cache
def library() -> Path:
    require("libc")
    folder = Path(tempfile.mkdtemp(prefix="dlock-machine-"))
    atexit.register(shutil.rmtree, folder)
    folder.chmod(0o755)  # for a server that runs as another user
    built = folder / "machine.so"
    options = ("-shared", "-fPIC", "-O1", "-Wall")
    subprocess.run([require("gcc"), *options, "-o", built, SOURCE], check=True)
    return built


class Machine:
    """What lies below *folder*; ``disk`` is what the power cut is about."""

    def __init__(self, folder: Path) -> None:
        self.disk = folder / "data"
        self._folder = folder / "machine"
        self._synced, self._alive = self._folder / "synced", self._folder / "alive"
        for each in (self.disk, self._synced, self._alive):
            each.mkdir(parents=True, exist_ok=True)
        told = self._folder / "told"
        told.write_bytes(bytes(mmap.PAGESIZE))
        with told.open("r+b") as file:
            self._told = memoryview(mmap.mmap(file.fileno(), mmap.PAGESIZE)).cast("q")
        user = folder.stat()
        for path in (self.disk, self._folder, *self._folder.iterdir()):
            os.chown(path, user.st_uid, user.st_gid)

    @property
    def env(self) -> Mapping[str, str]:
        """Who has this environment runs on this machine."""
        return {
            **os.environ,
            "LD_PRELOAD": str(library()),
            "TEST_MACHINE": str(self._folder),
        }

    @property
    def syncs(self) -> int:
        """How many there were."""
        return int(self._told[SYNCS])

    def clock_is_ahead(self, seconds: int) -> None:
        """What counts seconds since the start of the machine is as it was."""
        self._told[CLOCK] = seconds

    def sync_takes(self, seconds: float) -> None:
        self._told[SYNC_TAKES] = round(seconds * 1e6)

    def disk_is_full(self, full: bool) -> None:
        self._told[FULL] = full

    def settle(self) -> None:
        """As after some minutes of silence, when the kernel has written all there is."""
        for path in self._files():
            number = str(path.stat().st_ino)
            shutil.copyfile(path, self._synced / number)
            if not (self._alive / number).exists():
                os.link(path, self._alive / number)

    def forget(self) -> None:
        """Its power was cut: put each file back to what was synced of it. Nobody has one open."""
        for path in self._files():
            synced = self._synced / str(path.stat().st_ino)
            path.write_bytes(synced.read_bytes() if synced.exists() else b"")

    def _files(self) -> list[Path]:
        return [path for path in self.disk.rglob("*") if path.is_file()]


class OnMachine(ServerProcess):
    """A server on a machine of its own."""

    @cached_property
    def machine(self) -> Machine:
        return Machine(self.folder)

    def surroundings(self) -> Mapping[str, Any]:
        return {**super().surroundings(), "env": self.machine.env}

    def fill_disk(self) -> None:
        """What it writes next that needs room is refused."""
        self.machine.disk_is_full(True)

    def make_room(self) -> None:
        """It goes on, and is started again if it has ended."""
        self.machine.disk_is_full(False)
        if not self.running:
            self.start()

    def cut_power(self) -> None:
        """It is gone, and so is what was not synced; it can be started again."""
        self.kill()
        self.machine.forget()


class RedisOnMachine(OnMachine, RedisServer):
    """Its options are those of :class:`RedisServer`."""

    def command(self) -> list[str]:
        return [*super().command(), "--dir", str(self.machine.disk)]


class PostgresqlOnMachine(OnMachine, PostgresqlServer):
    def __init__(self) -> None:
        super().__init__(require("postgresql").parent)

    def fill_disk(self) -> None:
        """Its log needs another file with the next commit; without one it ends."""
        super().fill_disk()
        self.query("SELECT pg_switch_wal()")


class ZooKeeperOnMachine(OnMachine, ZooKeeperServer):
    """Its options are those of :class:`ZooKeeperServer`."""
