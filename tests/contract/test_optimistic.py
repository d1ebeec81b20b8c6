"""The machine over rows with optimistic commits, on a shelf in memory: rules of two stores."""

from __future__ import annotations

import pytest

from celery_dlock.testing import LockBackendContract, NoteStoreContract
from tests.contract.memory_rows import RowsBackend


class TestOptimistic(LockBackendContract, NoteStoreContract):
    backend_class = RowsBackend

    @pytest.fixture
    def url(self) -> str:
        return "rows://"
