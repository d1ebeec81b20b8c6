"""A body that lets nobody else run, as a C library does that keeps the interpreter's lock."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from celery import Celery

from celery_dlock import Lease
from tests.services.lab import Journal


def starve(seconds: int) -> None:
    """Nothing else of this process runs meanwhile, the renewing thread included."""
    ctypes.PyDLL(None).sleep(seconds)


def register_starving(app: Celery, folder: Path, options: Mapping[str, Any]) -> None:
    """Define the task on *app*, on the key of its order; *options* are Celery's own."""
    journal = Journal(folder / "journal")

    @app.task(name="starving", **options)
    def starving(order: str, seconds: int, extends: float | None = None, *, lease: Lease) -> bool:
        """Whether it still has its lock, after it starved everything for some seconds."""
        journal.write("start", order=order, token=lease.fencing_token)
        if extends is not None:
            lease.extend(extends)
        starve(seconds)
        journal.write("end", order=order, token=lease.fencing_token)
        return not lease.lost
