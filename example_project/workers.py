"""Starts real Celery workers, each in a process group of its own, and leaves none behind."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

OPTIONS = (
    *("worker", "--pool=prefork", "--loglevel=INFO"),
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

    def pause_between_writes(self, folder: Path, wait: Callable[[float], object]) -> None:
        """Stop it where it is not writing to a file in *folder* that the others need.

        A database server would end the transaction of a client that is gone; a file waits for it.
        """
        while True:
            self.pause()
            wait(0.1)
            if all(can_be_written(file) for file in folder.glob("*.db")):
                return
            self.resume()
            wait(0.02)

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


def start(
    app: str, name: str, folder: Path, environment: Mapping[str, str], concurrency: int = 2
) -> Worker:
    """Start one worker of *app* whose output goes to a file in *folder*."""
    command = (sys.executable, "-m", "celery", "-A", app, *OPTIONS)
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            (*command, f"--hostname={name}@shop", f"--concurrency={concurrency}"),
            cwd=ROOT,
            env={**os.environ, **environment, "TMPDIR": str(folder)},  # a killed one tidies nothing
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Worker(name, process, log)


@contextmanager
def running(
    app: str, count: int, folder: Path, environment: Mapping[str, str], concurrency: int = 2
) -> Iterator[list[Worker]]:
    """*count* workers of *app* for the time of the block; none is left after it."""
    workers: list[Worker] = []
    try:
        for number in range(1, count + 1):
            name = f"worker{number}"
            workers.append(start(app, name, folder, environment, concurrency))
        yield workers
    finally:
        for worker in workers:
            worker.kill()


def can_be_written(file: Path) -> bool:
    """Whether nobody holds a lock on this SQLite database, not even a process that is stopped."""
    with closing(sqlite3.connect(file, timeout=0.2, isolation_level=None)) as db:
        try:
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        db.execute("ROLLBACK")
        return True
