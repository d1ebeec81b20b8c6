"""Tasks whose lease is lost while the body runs, and who note what became of it."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from celery import Celery

from celery_dlock import Lease, LockedTask, LockLost
from celery_dlock.runtime import runtime
from tests.services.lab import Journal, hold_at

#: Far longer than any test: who sleeps for so long has to be woken.
LONG = 600.0


def register_losing(app: Celery, folder: Path, options: Mapping[str, Any]) -> None:
    """Define the tasks on *app*; *options* are those of its locked tasks."""
    journal = Journal(folder / "journal")

    class Watched(LockedTask):
        """Notes that its lock is lost."""

        abstract = True

        def on_lock_lost(self, lease: Any, *_: Any) -> None:
            journal.write("lost", token=lease.fencing_token)

    options = {"base": Watched, "shared": False, "lock_key": "order:{order}", **options}

    @app.task(name="outrun", bind=True, **options)
    def outrun(self: Any, order: str, how: str, *, lease: Any) -> str:
        """Its first run stays in the body: polls until the test says "on", or sleeps for long."""
        journal.write("start", token=lease.fencing_token)
        try:
            if how == "polls":
                hold_at(folder, "on")
            elif not _losses(self):
                time.sleep(LONG)
        except LockLost as error:
            journal.write("aborted", token=lease.fencing_token, lost=lease.lost, error=str(error))
            raise
        journal.write("end", token=lease.fencing_token)
        return "ran"

    @app.task(name="flicker", bind=True, **options)
    def flicker(self: Any, order: str, *, lease: Any) -> int:
        """Its first run loses its lease, if at all, at some instant around the end of the body."""
        if not _losses(self) and random.random() < 0.9:
            sys.setswitchinterval(1e-5)
            begun = threading.Event()
            threading.Thread(target=_lose_soon, args=(app, lease, begun), daemon=True).start()
            begun.wait()
            over = time.monotonic() + 10 ** random.uniform(-6, 0)
            while time.monotonic() < over:
                pass
        return _losses(self)


def _losses(task: Any) -> int:
    """How many runs of the running task ended because their lock was lost."""
    return int((task.request.get("dlock") or {}).get("lost", 0))


def _lose_soon(app: Celery, lease: Lease, begun: threading.Event) -> None:
    begun.set()
    lose(app, lease)


def lose(app: Celery, lease: Lease) -> None:
    """What the keeper does when the store has given *lease* up; nothing, if that has left."""
    keeper = runtime(app).manager._keeper
    for term in lease.terms:
        watch = keeper._watches.get(term.claim)
        if watch is not None:
            keeper._lose(watch, "the test took it")
