"""A command of the example as its user starts it, in a process whose descendants can be found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.services.until import until

ROOT = Path(__file__).resolve().parents[2]


class Command:
    """Runs of one module that keep what they write below one folder."""

    def __init__(self, folder: Path, module: str) -> None:
        self._command = (sys.executable, "-u", "-m", module)
        self.temp = folder / "temp"
        self.temp.mkdir()
        self._log = folder / "output"

    @property
    def output(self) -> str:
        return self._log.read_text()

    @contextmanager
    def started(self, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
        env = {**os.environ, "TMPDIR": str(self.temp), **environment}
        with self._log.open("wb") as output:
            running = subprocess.Popen(
                self._command, cwd=ROOT, env=env, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            yield running
        finally:
            running.kill()
            running.wait()
            for process in self.processes():
                process.kill()

    def processes(self) -> list[psutil.Process]:
        """Everything that runs with this folder in its environment and is not a zombie."""
        return [p for p in psutil.process_iter() if self._is_ours(p)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get("TMPDIR", "").startswith(str(self.temp))
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            return False

    def check_nothing_is_left(self) -> None:
        until("every process has gone", lambda: not self.processes())
        assert list(self.temp.iterdir()) == []
