"""For tests of projects that use this library, and of stores written for it; needs pytest."""

import pytest

pytest.register_assert_rewrite("celery_dlock.testing.contract")

from celery_dlock.testing.clock import ManualClock  # noqa: E402
from celery_dlock.testing.contract import LockBackendContract, SharedStoreContract  # noqa: E402
from celery_dlock.testing.places import in_memory  # noqa: E402
from celery_dlock.testing.stale import StaleHolder, stale_holder  # noqa: E402

__all__ = [
    "LockBackendContract",
    "ManualClock",
    "SharedStoreContract",
    "StaleHolder",
    "in_memory",
    "stale_holder",
]
