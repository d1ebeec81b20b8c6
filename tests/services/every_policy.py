"""One task for each thing that may happen to a task that finds its key taken."""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from celery import Celery

from celery_dlock import FullJitter, LockedTask, Policy, Queue, Reschedule, Skip, Wait
from tests.services.lab import Journal, hold_at

HAPPENS: Mapping[str, Policy] = {
    "queues": Queue(),
    "skips": Skip(),
    "comes_back": Reschedule(backoff=FullJitter(base=30, cap=30)),
    "gives_up": Wait(timeout=0.1),
    "gives_up_queueing": Queue(max_wait=0.1),
}


def register_every_policy(app: Celery, folder: Path) -> None:
    """Define them on *app*: they note when they start, and hold where they are told to."""
    journal = Journal(folder / "journal")
    for name, policy in HAPPENS.items():
        _register(app, folder, journal, name, policy)


def _register(app: Celery, folder: Path, journal: Journal, name: str, policy: Policy) -> None:
    @app.task(
        name=name,
        base=LockedTask,
        bind=True,
        shared=False,
        lock_key="order:{order}",
        lock_on_contention=policy,
    )
    def body(self: Any, order: str, hold: str | None = None) -> str:
        journal.write("start", id=self.request.id, order=order)
        if hold:
            hold_at(folder, hold)
        return order
