"""The machine over rows with optimistic commits, on a shelf in memory: the engine of two stores."""

from __future__ import annotations

import pytest

from tests.contract.memory_rows import RowsBackend
from tests.contract.storage.one_of_each import Promised
from tests.contract.suites import Notes, Storage


class TestOptimistic(Promised, Storage, Notes):
    backend_class = RowsBackend

    @pytest.fixture
    def url(self) -> str:
        return "rows://"
