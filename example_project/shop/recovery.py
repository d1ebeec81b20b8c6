"""What to do when a lock is lost: stop, check, be idempotent, compensate, alert.

STOP        ``lease.check()`` before a step that cannot be taken back.
CHECK       A run begins by looking how far an earlier one came; a lost lock means another run.
IDEMPOTENT  What leaves the database bears a key, so that it may be said twice.
COMPENSATE  What should not have happened after all is undone: money and item go back.
ALERT       People hear of it, from here.

Nothing of this protects the shop's own database: the fence does.
"""

from __future__ import annotations

from typing import Any

from celery_dlock import Lease, LockedTask
from example_project.shop.models import Alert, Transaction


class Watched(LockedTask):
    """A task whose lost locks are shown to people."""

    abstract = True

    def on_lock_lost(
        self, lease: Lease, task_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        lost = ", ".join(f"{key} (token {token})" for key, token in lease.fencing_tokens.items())
        text = f"{task_id} has lost {lost}; what it still writes is refused"
        with Transaction.begin() as db:
            db.add(Alert(text=text))
