"""The machine over rows with optimistic commits, on a shelf in memory: rules of two stores."""

from __future__ import annotations

import pytest

from tests.contract.memory_rows import RowsBackend
from tests.contract.suites import Notes, Rules, Storage


class TestOptimistic(Rules, Storage, Notes):
    backend_class = RowsBackend

    @pytest.fixture
    def url(self) -> str:
        return "rows://"
