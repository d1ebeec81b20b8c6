"""Starts real Celery workers, each in a process group of its own, and leaves none behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

COMMAND = (
    *(sys.executable, "-m", "celery", "-A", "example_project.app", "worker"),
    *("--pool=prefork", "--concurrency=2", "--loglevel=INFO"),
    *("--without-gossip", "--without-mingle", "--without-heartbeat"),
)


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker: its main process leads the group that its children are in."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def group(self) -> int:
        return self.process.pid

    def pause(self) -> None:
        """Stop the main process and all of its children, wherever they are."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        self._send(signal.SIGCONT)

    def ask_to_stop(self) -> None:
        """A warm shutdown: it ends what it runs and puts back what it holds."""
        if self.process.poll() is None:
            self.process.terminate()

    def kill(self) -> None:
        """End the whole group, also one that was stopped, also children without their parent."""
        self._send(signal.SIGKILL)
        self.process.wait()

    def last_words(self) -> str:
        """The end of what it has written."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])

    def _send(self, signum: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.group, signum)


def start(name: str, folder: Path, environment: dict[str, str]) -> Worker:
    """Start one worker whose output goes to a file in *folder*."""
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            (*COMMAND, f"--hostname={name}@shop"),
            cwd=ROOT,
            env={**os.environ, **environment, "TMPDIR": str(folder)},  # a killed one tidies nothing
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Worker(name, process, log)


@contextmanager
def running(count: int, folder: Path, environment: dict[str, str]) -> Iterator[list[Worker]]:
    """*count* workers for the time of the block; whatever happens, none is left after it."""
    workers: list[Worker] = []
    try:
        for number in range(1, count + 1):
            workers.append(start(f"worker{number}", folder, environment))  # noqa: PERF401
        yield workers
    finally:
        for worker in workers:
            worker.kill()
