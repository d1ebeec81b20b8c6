"""Listeners for the tests' workers to be told of what happens to locks."""

from __future__ import annotations

import json
import os
from pathlib import Path

from celery_dlock.core.events import Acquired, Event
from tests.services.lab import Journal, hold_at


def hold_what_is_acquired(event: Event) -> None:
    """Keep a task between its lock and its body, until the test says ``go sink``."""
    if isinstance(event, Acquired):
        folder = Path(json.loads(Path(os.environ["LAB_CONFIG"]).read_text())["folder"])
        Journal(folder / "journal").write("acquired", id=event.subject.task_id)
        hold_at(folder, "sink")
