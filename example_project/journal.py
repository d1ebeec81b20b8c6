"""What the locks went through, one line of JSON an event, for whoever wants to count.

Named in ``dlock_sinks``; called in the process where it happens.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from celery_dlock.core.events import Event


def note(event: Event) -> None:
    """Append *event* with one write, so that lines of several processes do not mix."""
    from example_project.settings import FOLDER

    entry = {"event": type(event).__name__, "pid": os.getpid(), **asdict(event)}
    line = (json.dumps(entry) + "\n").encode()
    journal = os.open(FOLDER / "journal.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(journal, line)
    finally:
        os.close(journal)


def read(folder: Path) -> list[dict[str, Any]]:
    """Every whole line; the last may be missing its end while somebody writes."""
    file = folder / "journal.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]
