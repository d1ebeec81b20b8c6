"""An operator at a store in a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.operator import Operator, operator


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Operator]:
    with operator(dlock_url=f"sqlite:///{tmp_path / 'locks.db'}") as made:
        made.backend.sweep()  # as each worker does when it starts
        yield made
