"""Labs without a server: the shop's broker in a folder, SQLite for locks and results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from example_project.broker import transport_options
from tests.services.lab import Lab

MakeLab = Callable[..., Lab]


def embedded(folder: Path) -> dict[str, Any]:
    """Celery's configuration for a broker, results and locks below *folder*."""
    (folder / "results").mkdir()
    return {
        "broker_url": "filesystem://",
        "broker_transport": "example_project.broker:Transport",
        "broker_transport_options": transport_options(folder / "broker"),
        "result_backend": f"file://{folder / 'results'}",
        "dlock_url": f"sqlite:///{folder / 'locks.db'}",
    }


@pytest.fixture
def make_lab(tmp_path: Path) -> MakeLab:
    """``make_lab(celery={...}, lock={...}, task={...})``: a lab with these on top of its own."""

    def make(celery: dict[str, Any] | None = None, **options: dict[str, Any]) -> Lab:
        return Lab(tmp_path, {"celery": {**embedded(tmp_path), **(celery or {})}, **options})

    return make
