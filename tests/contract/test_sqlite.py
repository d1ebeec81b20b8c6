"""The store in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_dlock.stores.sql.sqlite import SqliteBackend
from tests.contract.suites import Notes, SharedStorage


class TestSqlite(SharedStorage, Notes):
    backend_class = SqliteBackend

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/locks.db"
