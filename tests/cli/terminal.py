"""Commands as people start them: processes of ``celery``, with a terminal or without one."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from tests.services import fork_server

#: Seconds that a process may take, on a busy machine.
PATIENCE = 120.0

COMMAND = (sys.executable, "-m", "celery")

#: As at any terminal, also where the tests were started in the background, which ignores it.
HEEDS_CTRL_C = ("env", "--default-signal=INT")

ROOT = Path(__file__).resolve().parents[2]


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Where the application in *folder* is found, and those of the tests."""
    found = [str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, found))
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    return {**kept, "PYTHONPATH": path, "TERM": "xterm", **more}


def dlock(
    folder: Path, *arguments: str, app: str = "shop", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """``celery -A APP dlock …``, without a terminal; forked, for to import Celery is most of it."""
    command = [*COMMAND, "-A", app, "dlock", *arguments]
    with TemporaryFile() as output, TemporaryFile() as errors:
        with chdir(folder):
            process = fork_server.fork(command, output, environment(folder, **(env or {})), errors)
        try:
            code = process.wait(PATIENCE)
        finally:
            process.kill()
        said = [os.pread(file.fileno(), 1 << 20, 0).decode() for file in (output, errors)]
    return subprocess.CompletedProcess(command, code, *said)


class Terminal:
    """A command at a terminal of 24 lines and *columns*."""

    def __init__(self, folder: Path, *arguments: str, columns: int = 80, **env: str) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.process = subprocess.Popen(
            [*HEEDS_CTRL_C, *COMMAND, "-A", "shop", "dlock", *arguments],
            cwd=folder,
            env=environment(folder, **env),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.said = ""

    def wait_for(self, text: str, after: int = 0) -> None:
        """Until the command has printed *text*, *after* so many characters."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.said[after:]:
            assert time.monotonic() < deadline, self.said
            assert self._read(), f"it ended without {text!r}:\n{self.said}"

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> int:
        """Read on until the command ends; its exit code."""
        while self._read():
            pass
        return self.process.wait(PATIENCE)

    def _read(self) -> bool:
        """Whether it may print more."""
        ready, _, _ = select.select([self._master], [], [], PATIENCE)
        assert ready, f"it says nothing:\n{self.said}"
        try:
            said = os.read(self._master, 65536)
        except OSError:  # the other end is closed
            return False
        self.said += said.decode()
        return bool(said)

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._master)


@contextmanager
def at_terminal(folder: Path, *arguments: str, columns: int = 80, **env: str) -> Iterator[Terminal]:
    terminal = Terminal(folder, *arguments, columns=columns, **env)
    try:
        yield terminal
    finally:
        terminal.close()
