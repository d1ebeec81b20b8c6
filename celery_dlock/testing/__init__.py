"""For tests of projects that use this library, and of stores written for it; needs pytest."""

import pytest

pytest.register_assert_rewrite("celery_dlock.testing.contract")

from celery_dlock.testing.contract import (  # noqa: E402
    LockBackendContract,
    NoteStoreContract,
    SharedStoreContract,
)
from celery_dlock.testing.inline import (  # noqa: E402
    InlineWorker,
    held_by_another,
    inline_worker,
)
from celery_dlock.testing.project import (  # noqa: E402
    ManualClock,
    StaleHolder,
    checked_lock_order,
    in_memory,
    stale_holder,
)

__all__ = [
    "InlineWorker",
    "LockBackendContract",
    "ManualClock",
    "NoteStoreContract",
    "SharedStoreContract",
    "StaleHolder",
    "checked_lock_order",
    "held_by_another",
    "in_memory",
    "inline_worker",
    "stale_holder",
]
