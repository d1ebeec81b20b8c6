"""The releases that a store did not answer: it may never have heard of what has ended."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.base import LockBackend

FILE = "unheard"


def note_unheard(folder: Path) -> None:
    """From now on the stores of this process, and of those it forks, write down each of them."""
    leave: Any = LockBackend.leave

    def noting(store: LockBackend, *given: Any) -> Any:
        began = time.monotonic()
        try:
            return leave(store, *given)
        except BackendUnavailable:
            with (folder / FILE).open("a") as file:
                file.write(f"{began}\n")
            raise

    LockBackend.leave = noting  # type: ignore[assignment, method-assign]


def unheard(folder: Path) -> list[float]:
    """When each was asked for, on the monotonic clock."""
    path = folder / FILE
    return [float(line) for line in path.read_text().splitlines()] if path.exists() else []
