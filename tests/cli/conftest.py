"""An operator at a store in a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_dlock.errors import BackendUnavailable
from tests.cli.operator import Operator, operator


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Operator]:
    with operator(dlock_url=f"sqlite:///{tmp_path / 'locks.db'}") as made:
        made.backend.sweep()  # as each worker does when it starts
        yield made


@pytest.fixture
def away(desk: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its store answers no question."""

    def no_answer(*_: object, **__: object) -> None:
        raise BackendUnavailable("no\nanswer")

    for operation in ("keys", "look", "peek", "parked", "dead", "dead_of", "position"):
        monkeypatch.setattr(desk.backend, operation, no_answer)
