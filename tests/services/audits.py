"""A task on what lies above all orders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from celery import Celery

from celery_dlock import LockedTask
from tests.services.lab import Journal, hold_at


def register_audit(app: Celery, folder: Path, options: Mapping[str, Any]) -> None:
    """Define the task on *app*, on the key that it is given; *options* are Celery's own."""
    journal = Journal(folder / "journal")
    alone = {"lock_key": "{parent}", "lock_parents": (), "lock_limit": 1}

    @app.task(name="audit", base=LockedTask, shared=False, **{**options, **alone})
    def audit(parent: str, hold: str | None = None) -> None:
        """Has the parent of all orders for itself."""
        journal.write("audit starts")
        if hold:
            hold_at(folder, hold)
        journal.write("audit ends")
