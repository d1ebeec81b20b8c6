"""A command of the example in a process whose descendants can be found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.services import fork_server
from tests.services.until import until

ROOT = Path(__file__).resolve().parents[2]


class Command:
    """Runs of one module that keep what they write below one folder."""

    def __init__(self, folder: Path, module: str) -> None:
        self._module = module
        self._folder = folder
        self.temp = folder / "temp"
        self.temp.mkdir()
        self._log = folder / "output"

    @property
    def output(self) -> str:
        return self._log.read_text()

    @contextmanager
    def started(self, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
        """As its user starts it."""
        line = (sys.executable, "-u", "-m", self._module, *arguments)
        env = {**os.environ, "TMPDIR": str(self.temp), **environment}
        with self._log.open("wb") as output:
            running = subprocess.Popen(
                line, cwd=ROOT, env=env, stdout=output, stderr=subprocess.STDOUT
            )
        with self._until_then(running):
            yield running

    @contextmanager
    def forked(self, *arguments: str, **environment: str) -> Iterator[fork_server.Forked]:
        """The same code in processes that need not import Celery."""
        line = (sys.executable, "-m", "tests.demo.warm", self._module, *arguments)
        env = {**os.environ, "TMPDIR": str(self.temp), **environment}
        with self._log.open("wb") as output:
            running = fork_server.fork(line, output, env)
        with self._until_then(running):
            yield running

    @contextmanager
    def _until_then(self, running: subprocess.Popen[bytes] | fork_server.Forked) -> Iterator[None]:
        try:
            yield
        finally:
            running.kill()
            running.wait()
            for process in self.processes():
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    def processes(self) -> list[psutil.Process]:
        """Everything with this folder in its environment, or with a file of it open; no zombie.

        What was forked shows the environment of the process that it was forked from.
        """
        return [p for p in psutil.process_iter() if self._is_ours(p) or self._has_open(p.pid)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get("TMPDIR", "").startswith(str(self.temp))
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            return False

    def _has_open(self, pid: int) -> bool:
        """Also when it has been deleted since."""
        with suppress(OSError):
            files = [file.readlink() for file in Path(f"/proc/{pid}/fd").iterdir()]
            return any(file.is_relative_to(self._folder) for file in files)
        return False

    def check_nothing_is_left(self) -> None:
        until("every process has gone", lambda: not self.processes())
        assert list(self.temp.iterdir()) == []
