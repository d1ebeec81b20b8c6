"""The application that the tests' workers run, configured by a file that ``LAB_CONFIG`` names.

What the bodies did is written to a journal, one JSON line an entry, appended in one write: it
tells afterwards who ran when, with which token, whatever became of the process.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celery import Celery
from celery._state import _set_task_join_will_block
from celery.signals import worker_ready

from celery_dlock.core import turns
from celery_dlock.worker import periodic
from celery_dlock.worker.periodic import Sweeper
from tests.services import faults
from tests.services.until import until
from tests.services.worker import Worker

#: The lock stores that other processes of this test use, for the record of what it ran on.
used_urls: list[str] = []


class Journal:
    """Append-only notes of what really happened, readable from any process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: list[dict[str, Any]] = []
        self._read = 0  # so many bytes: who waits for an entry reads again and again

    def write(self, what: str, **fields: Any) -> None:
        entry = {"what": what, "at": time.time(), "pid": os.getpid(), **fields}
        line = (json.dumps(entry) + "\n").encode()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def read(self, what: str | None = None, **fields: Any) -> list[dict[str, Any]]:
        """The entries so far, of one kind and with these fields."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read)
                whole, end, _ = file.read().rpartition(b"\n")  # a line may be about to be written
            self._known += map(json.loads, whole.splitlines())
            self._read += len(whole + end)
        return [
            entry
            for entry in self._known
            if (what is None or entry["what"] == what)
            and all(entry.get(name) == value for name, value in fields.items())
        ]

    def wait_for(
        self, what: str, count: int = 1, timeout: float = 60.0, **fields: Any
    ) -> list[dict[str, Any]]:
        """Wait until at least *count* such entries are there."""
        return until(
            lambda: f"{count} × {what} {fields}, there is {self.read()}",
            lambda: found if len(found := self.read(what, **fields)) >= count else [],
            timeout,
        )


class Lab:
    """One test's folder, configuration, journal and workers."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.folder = folder
        self.config = {"folder": str(folder), **config}
        used_urls.append(config["celery"]["dlock_url"])
        self.journal = Journal(folder / "journal")
        self.app = make_app(self.config)
        self._workers = 0

    @contextmanager
    def worker(
        self, pool: str = "prefork", concurrency: int = 2, *, ready: bool = True, **config: Any
    ) -> Iterator[Worker]:
        """A real worker with this configuration and *config* on top of it.

        One that is to die as it starts is not waited for until it is *ready*.
        """
        self._workers += 1
        name = f"worker{self._workers}"
        settings = {**self.config, **config}
        worker = Worker(self.folder, settings, name, pool, concurrency)
        try:
            worker.start(ready=ready)
            yield worker
        finally:
            worker.kill()

    def go(self, name: str) -> None:
        """Let every body that holds at *name* go on."""
        (self.folder / f"go-{name}").touch()


def hold_at(folder: Path, name: str, timeout: float = 60.0) -> None:
    """Called by bodies: wait for the test to say go."""
    until(f"go {name}", (folder / f"go-{name}").exists, timeout)


def make_app(config: Mapping[str, Any]) -> Celery:
    """An app from the part ``celery`` of *config*, with the tasks of ``tests.services.tasks``."""
    from tests.services import seen, tasks

    app = Celery("lab", set_as_current=False)
    app.conf.update(config["celery"])
    folder = Path(config["folder"])
    lock, task = config.get("lock", {}), config.get("task", {})
    tasks.register(app, folder, lock, task, config.get("database"))
    seen.register_seen(app, folder)
    return app


@worker_ready.connect
def permit_to_join(**_: object) -> None:
    """Celery gives and takes this for all threads at once: a chord would fail for another's."""
    _set_task_join_will_block(False)


def __getattr__(name: str) -> Any:
    """``tests.services.lab:app`` for ``celery -A``: built where ``LAB_CONFIG`` is set."""
    if name != "app":
        raise AttributeError(name)
    with _building:
        if "app" not in globals():
            config = json.loads(Path(os.environ["LAB_CONFIG"]).read_text())
            Sweeper.enabled = config.get("sweeps", True)
            periodic.LONGEST_SLEEP = config.get("sweeps_every", periodic.LONGEST_SLEEP)
            turns.WAKE_AGAIN_FIRST = config.get("call_again", turns.WAKE_AGAIN_FIRST)
            turns.UNATTENDED = config.get("unattended", turns.UNATTENDED)
            globals()["app"] = make_app(config)
            faults.install(Path(config["folder"]), config.get("faults", ()))
    return globals()["app"]


_building = threading.Lock()
