"""For tests of projects that use this library, with or without pytest."""

from celery_dlock.testing.inline import (
    InlineWorker,
    held_by_another,
    inline_worker,
)
from celery_dlock.testing.project import (
    ManualClock,
    StaleHolder,
    checked_lock_order,
    in_memory,
    stale_holder,
)

__all__ = [
    "InlineWorker",
    "ManualClock",
    "StaleHolder",
    "checked_lock_order",
    "held_by_another",
    "in_memory",
    "inline_worker",
    "stale_holder",
]
