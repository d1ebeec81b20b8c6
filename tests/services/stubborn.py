"""A body that does not go when it is told to."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
from celery import Celery

from tests.services.lab import Journal


def register_stubborn(app: Celery, folder: Path, options: Mapping[str, Any]) -> None:
    """Define the tasks on *app*, on the key of their order; *options* are Celery's own."""
    journal = Journal(folder / "journal")

    @app.task(name="stubborn", **options)
    def stubborn(order: str) -> None:
        """Writes a line every 10 ms, and for a second more when it is terminated; then it dies."""
        told: list[float] = []
        signal.signal(signal.SIGTERM, lambda *_: told.append(time.monotonic()))
        journal.write("start", order=order)
        while not told or time.monotonic() < told[0] + 1.0:
            journal.write("line", order=order)
            time.sleep(0.01)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    @app.task(name="threads", **options)
    def threads(order: str) -> list[str]:
        """The names of the threads of the process that it runs in."""
        return [thread.name for thread in threading.enumerate()]


def is_alive(pid: int) -> bool:
    """Whether the process can still write: it is there, and has not ended."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
