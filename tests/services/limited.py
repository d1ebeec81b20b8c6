"""A task under two limits at once: so many of its tenant, and so many in all."""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from celery import Celery

from celery_dlock import Limit, LockedTask
from celery_dlock.contention import replaces_running
from tests.services.lab import Journal, hold_at

EACH, ALL = 2, 3


def register_limited(app: Celery, folder: Path, options: Mapping[str, Any]) -> None:
    """Define ``load`` on *app*; with *hold* it stays in the body until the test says go."""
    # Neither goes with several keys, or with a key of this name.
    if replaces_running(options["lock_on_contention"]) or "all" in options.get("lock_parents", ()):
        return
    journal = Journal(folder / "journal")
    of_a_lock = ("lock_limit", "lock_shared", "lock_cooldown")  # which each key has of its own
    given = {name: value for name, value in options.items() if name not in of_a_lock}

    @app.task(
        name="load",
        base=LockedTask,
        shared=False,
        **{**given, "lock_key": [Limit("all", ALL), Limit("tenant:{tenant}", EACH)]},
    )
    def load(tenant: str, number: int, hold: str | None = None) -> int:
        journal.write("start", tenant=tenant, number=number)
        if hold:
            hold_at(folder, hold)
        journal.write("end", tenant=tenant, number=number)
        return number
