"""The machine over rows with a guarded commit, on a shelf in memory: the rules of two stores."""

from __future__ import annotations

import pytest

from celery_dlock.testing import LockBackendContract
from tests.contract.memory_rows import RowsBackend


class TestGuarded(LockBackendContract):
    backend_class = RowsBackend

    @pytest.fixture
    def url(self) -> str:
        return "rows://"
