"""A task below a parent, and what others can have meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from celery_dlock import Lease, LockContended, LockedTask, Shared, lock
from celery_dlock.core.state import Mode
from celery_dlock.runtime import runtime
from tests.services.desk import Desk

#: One that sorts before the key of an order and one that sorts behind it.
PARENTS = ["all", "orders"]

Body = Callable[[str, Lease], Any]


def child(desk: Desk, parent: str, body: Body | None = None, **options: Any) -> LockedTask:
    @desk.locked(["order:{order}", Shared(parent)], **{"name": "charge", **options})
    def charge(order: str, *, lease: Lease) -> Any:
        return body(order, lease) if body else lease.fencing_token

    return charge


def elsewhere(desk: Desk, *keys: Any, **options: Any) -> bool:
    """Whether other code than this can have *keys* now."""
    outcome: list[bool] = []

    def take() -> None:
        try:
            with lock(keys, app=desk.app, timeout=0, **options):
                outcome.append(True)
        except LockContended:
            outcome.append(False)

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return outcome[0]


def modes(desk: Desk, key: str) -> list[Mode]:
    return [holder.mode for holder in runtime(desk.app).backend.peek(key).holders]


def waiting(desk: Desk, key: str) -> int:
    return len(runtime(desk.app).backend.peek(key).waiting)
