"""For tests of projects that use this library, and of stores written for it.

Only the contract of a store needs pytest.
"""

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from celery_dlock.testing.contract import (
        LockBackendContract,
        NoteStoreContract,
        SharedStoreContract,
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


def __getattr__(name: str) -> Any:
    """Load the contract when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from celery_dlock.testing import contract

    return getattr(contract, name)
