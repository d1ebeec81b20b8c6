"""A real Celery worker as a process group of its own, so that all of it can be killed or paused."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from tests.services import fork_server
from tests.services.until import until


class Worker:
    """``celery worker`` on *app*, configured by *config*."""

    #: What its log says when it is up.
    is_up: ClassVar[bytes] = b" ready."

    def __init__(
        self,
        folder: Path,
        config: dict[str, Any],
        name: str,
        pool: str,
        concurrency: int,
        app: str = "tests.services.lab:app",
    ) -> None:
        self.log_path = folder / f"{name}.log"
        config_path = folder / f"{name}.json"
        config_path.write_text(json.dumps(config))
        self._env = {**os.environ, "LAB_CONFIG": str(config_path), "PYTHONUNBUFFERED": "1"}
        self._command = [
            *(sys.executable, "-m", "celery", "-A", app, "worker"),
            *("--pool", pool, "--concurrency", str(concurrency), "--hostname", f"{name}@lab"),
            *("--loglevel", "INFO", "--without-gossip", "--without-mingle", "--without-heartbeat"),
        ]
        self.process: fork_server.Forked | subprocess.Popen[bytes] | None = None
        self._started_at = 0  # where in the log

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        assert self.process is not None, "not started"
        return self.process.pid

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def start(self, *, ready: bool = True) -> None:
        """Start, and wait until it consumes (unless *ready* is false)."""
        with self.log_path.open("ab") as log:
            self._started_at = log.tell()
            self.process = fork_server.start(self._command, log, self._env)
        if ready:
            until(f"worker ready: {self.log_path}", self._is_ready, timeout=60)

    def _is_ready(self) -> bool:
        assert self.process is not None
        if self.is_up in self.log_path.read_bytes()[self._started_at :]:
            return True  # and by now it may have killed itself, as a test may want
        assert self.process.poll() is None, f"the worker has exited:\n{self.log}"
        return False

    def send(self, number: signal.Signals, *, whole_group: bool = False) -> None:
        """Send a signal to the main process, or to it and all of its children."""
        if whole_group:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)
        else:
            os.kill(self.pid, number)

    def pause(self) -> None:
        self.send(signal.SIGSTOP, whole_group=True)

    def resume(self) -> None:
        self.send(signal.SIGCONT, whole_group=True)

    def ended(self, timeout: float = 60.0) -> int:
        """Wait until it has exited by itself; the exit code."""
        assert self.process is not None
        return self.process.wait(timeout)

    def kill(self) -> None:
        """SIGKILL to all of it; nothing is left afterwards."""
        if self.process is None:
            return
        self.send(signal.SIGCONT, whole_group=True)
        self.send(signal.SIGKILL, whole_group=True)
        self.process.wait()
        self.process = None

    def start_if_gone(self) -> None:
        """What a supervisor does: start again what has exited."""
        if self.process is None or self.process.poll() is not None:
            self.kill()
            self.start()

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout: float = 60.0) -> int:
        """Ask it to shut down (SIGTERM warm, SIGQUIT cold) and wait until it has; the exit code."""
        self.send(number)
        return self.ended(timeout)
