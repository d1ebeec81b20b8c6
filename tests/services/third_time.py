"""A task that fails twice and succeeds the third time, with a lock and without.

Nobody retries it: its broker is to deliver it again.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from celery import Celery

from celery_dlock import LockedTask
from tests.services.lab import Journal


def register_third_time(app: Celery, folder: Path, options: Mapping[str, Any]) -> None:
    """Define both on *app*; *options* are those of its locked tasks."""
    journal = Journal(folder / "journal")
    plain = {name: value for name, value in options.items() if not name.startswith("lock_")}

    def third_time(self: Any, order: str) -> int:
        journal.write("start", order=order, id=self.request.id)
        tries = len(journal.read("start", order=order))
        if tries < 3:
            raise ValueError(tries)
        return tries

    locked = {"base": LockedTask, "lock_key": "order:{order}", **options}
    app.task(name="third time", bind=True, shared=False, **locked)(third_time)
    app.task(name="third time plainly", bind=True, shared=False, **plain)(third_time)
