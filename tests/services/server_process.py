"""A server that is one process of our own, with all it writes in one temporary folder."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from tests.services.started import Started
from tests.services.until import until


class ServerProcess(Started):
    """Its process can be killed, paused and started again on the same ports and folder."""

    #: Its name, for people and in that of its folder.
    program: ClassVar[str]
    #: Seconds until it answers, at the most.
    start_within: ClassVar[float] = 120.0
    #: Who runs it where the tests are run by root, for one that refuses to be root.
    runs_as: ClassVar[str | None] = None

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def begin(self) -> None:
        """Start, and do not wait."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it is there for its clients."""

    @cached_property
    def folder(self) -> Path:
        """Made when it is first asked for; :meth:`stop` removes it."""
        folder = Path(tempfile.mkdtemp(prefix=f"dlock-{self.program}-"))
        if user := self._user():
            os.chown(folder, user.pw_uid, user.pw_gid)
        return folder

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        self.begin()
        self.wait()

    def wait(self) -> None:
        """Return when it answers."""
        deadline = time.monotonic() + self.start_within
        while not self.answers():
            if not self.running or time.monotonic() > deadline:
                raise RuntimeError(f"{self.program} did not start: {self.log.read_text()[-3000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL, and return when it is gone. What was not on disk is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """SIGSTOP, and return when it is obeyed: connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)
        until("each thread has stopped", self._has_stopped)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Killed for the time of the block."""
        self.kill()
        try:
            yield
        finally:
            self.start()

    def restart(self) -> None:
        """Kill, and start again on the same ports and folder."""
        self.kill()
        self.start()

    def back_up(self) -> None:
        """Copy its data, which takes a restart."""
        self.kill()
        shutil.copytree(self._data, self._copy)
        self.start()

    def restore(self) -> None:
        """Kill it, and start it again with what it had when it was backed up."""
        self.kill()
        shutil.rmtree(self._data)
        shutil.copytree(self._copy, self._data)
        self.start()

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _copy(self) -> Path:
        return self.folder / "copy"

    def stop(self) -> None:
        self.kill()
        if "folder" in vars(self):
            shutil.rmtree(self.folder)
            del self.folder

    def run(self, *command: str | Path) -> None:
        """The process from now on is *command*."""
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, **self.surroundings()
            )

    def surroundings(self) -> Mapping[str, Any]:
        """Where and as whom its programs run, as :mod:`subprocess` takes it."""
        options: dict[str, Any] = {"cwd": self.folder}  # which that user may enter
        if user := self._user():
            options |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": ()}
        return options

    def _user(self) -> pwd.struct_passwd | None:
        return pwd.getpwnam(self.runs_as) if self.runs_as and os.geteuid() == 0 else None

    def _has_stopped(self) -> bool:
        threads = Path(f"/proc/{self.pid}/task").glob("*/stat")
        return all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in threads)
