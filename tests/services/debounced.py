"""A debounced task for the lab."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from celery import Celery

from celery_dlock import Debounce, LockedTask
from tests.services.lab import Journal


def register_debounced(app: Celery, folder: Path, options: Mapping[str, Any]) -> None:
    """Define ``index`` on *app*, which is due a second after its last call."""
    journal = Journal(folder / "journal")
    debounced = {"lock_key": "order:{order}", **options, "lock_unique": Debounce(1, 5)}

    @app.task(name="index", base=LockedTask, bind=True, shared=False, **debounced)
    def index(self: Any, order: str, number: int = 0) -> int:
        journal.write("indexed", order=order, number=number, id=self.request.id)
        return number
