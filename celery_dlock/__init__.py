"""Per-resource locks for Celery tasks, with fencing tokens. See ``docs/`` for what they promise."""

from typing import TYPE_CHECKING, Any

from celery_dlock.core.access import Limit, Shared
from celery_dlock.core.backoff import FullJitter
from celery_dlock.core.debounce import Debounce
from celery_dlock.core.lease import Lease
from celery_dlock.core.unique import Unique
from celery_dlock.errors import (
    BackendUnavailable,
    ConfigurationError,
    DLockError,
    LockContended,
    LockLost,
    LockTimeout,
    StaleFencingToken,
)
from celery_dlock.locks.current import current_lease
from celery_dlock.locks.injected import INJECTED
from celery_dlock.policies.shipped import Fail, Ordered, Queue, Replace, Reschedule, Skip, Wait
from celery_dlock.tasks.decorator import locked_task
from celery_dlock.tasks.idempotency import idempotency_key
from celery_dlock.tasks.task import LockedTask

if TYPE_CHECKING:
    from celery_dlock.tasks.block import lock

__all__ = [
    "INJECTED",
    "BackendUnavailable",
    "ConfigurationError",
    "DLockError",
    "Debounce",
    "Fail",
    "FullJitter",
    "Lease",
    "Limit",
    "LockContended",
    "LockLost",
    "LockTimeout",
    "LockedTask",
    "Ordered",
    "Queue",
    "Replace",
    "Reschedule",
    "Shared",
    "Skip",
    "StaleFencingToken",
    "Unique",
    "Wait",
    "current_lease",
    "idempotency_key",
    "lock",
    "locked_task",
]


def __getattr__(name: str) -> Any:
    """Load ``lock()`` when it is asked for: a process that only publishes tasks does without."""
    if name != "lock":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from celery_dlock.tasks import block

    return globals().setdefault("lock", block.lock)
