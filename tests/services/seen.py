"""A task that tells how its message looked when it arrived at the body."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from celery import Celery

from celery_dlock import LockedTask
from tests.services.lab import Journal

OF_THE_MESSAGE = (
    *("argsrepr", "kwargsrepr", "callbacks", "errbacks", "expires", "timelimit", "stamps"),
    *("ignore_result", "reply_to", "retries", "tenant", "eta", "lang", "origin", "shadow"),
)


def register_seen(app: Celery, folder: Path) -> None:
    """Define ``see`` on *app*: it waits in its order's queue, and notes what it sees."""
    journal = Journal(folder / "journal")

    @app.task(
        name="see",
        base=LockedTask,
        bind=True,
        shared=False,
        lock_key="order:{order}",
        lock_on_contention="queue",
    )
    def see(self: Any, order: str) -> None:
        request = self.request
        came = {k: request.delivery_info.get(k) for k in ("exchange", "routing_key", "priority")}
        about = {name: request.get(name) for name in OF_THE_MESSAGE}
        waits = (request.get("dlock") or {}).get("waits", 0)
        journal.write("saw", order=order, waits=waits, message={**about, **came})
