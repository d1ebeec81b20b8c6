"""A unique task: while one call of it lives, no other that does the same is published."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from celery import Celery

from celery_dlock import LockedTask
from tests.services.lab import Journal


def register_once(app: Celery, folder: Path, options: Mapping[str, Any]) -> None:
    """Define it on *app*; *options* are Celery's own."""
    journal = Journal(folder / "journal")
    unique = {**options, "lock_key": "order:{order}", "lock_unique": "done"}

    @app.task(name="once", base=LockedTask, shared=False, **unique)
    def once(order: str, number: int = 0) -> int:
        journal.write("once", order=order, number=number)
        return number
