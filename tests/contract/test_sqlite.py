"""The store in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_dlock.stores.sql.sqlite import SqliteBackend
from celery_dlock.testing import NoteStoreContract, SharedStoreContract


class TestSqlite(SharedStoreContract, NoteStoreContract):
    backend_class = SqliteBackend

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/locks.db"
