"""Tasks a second through real worker processes, with and without a lock."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.measure import Measured, in_turns
from tests.services.lab import Lab


def uncontended(folder: Path, url: str, tasks: int = 1500, rounds: int = 3) -> list[Measured]:
    """Every task has a key of its own; the queue is full before the worker starts."""
    celery = {"broker_url": url, "result_backend": url, "dlock_url": url}
    return in_turns(
        {
            "a plain task": lambda: drained(folder, celery, "plain", tasks),
            "the same with a lock": lambda: drained(folder, celery, "quick", tasks),
        },
        rounds,
    )


def drained(folder: Path, celery: dict[str, Any], name: str, tasks: int) -> float:
    """Tasks a second, from the first body to the last."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        lab = Lab(Path(own), {"celery": celery, "lock": {"ttl": 30.0}})
        for number in range(tasks):
            lab.app.tasks[name].delay(f"order:{number}", number)
        with lab.worker("prefork", concurrency=2):
            ran = lab.journal.wait_for("ran", count=tasks, timeout=120)
        return tasks / float(ran[-1]["at"] - ran[0]["at"])
