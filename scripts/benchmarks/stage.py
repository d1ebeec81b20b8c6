"""A lab for the contestants: broker, results and locks on one Redis, empty at each turn."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redis import Redis

from celery_dlock.runtime import forget, runtime
from scripts.benchmarks.notes import Notes, Span
from tests.services.lab import Lab
from tests.services.until import until


class Stage(Lab):
    """One turn of one contestant."""

    def __init__(self, folder: Path, url: str) -> None:
        celery = {
            "broker_url": url,
            "result_backend": url,
            "dlock_url": url,
            "imports": ["scripts.benchmarks.contestants"],
            "bench_notes": str(folder / "notes"),
        }
        super().__init__(folder, {"celery": celery})
        self.app.loader.import_default_modules()
        self.notes = Notes(self.app)

    def send(self, name: str, *args: Any) -> None:
        self.app.tasks[f"bench.{name}"].delay(*args)

    def let_wait(self, key: str, seconds: float, tasks: int) -> None:
        """Return when *tasks* wait for *key*, which the first holds until it may ``go``."""
        backend = runtime(self.app).backend
        self.send("queued", key, seconds, 0.0, "first")
        until("the key is held", lambda: backend.peek(key).holders)
        for _ in range(tasks):
            self.send("queued", key, seconds)
        until("all others wait", lambda: backend.peek(key).parked == tasks, timeout=120)


@contextmanager
def staged(folder: Path, url: str) -> Iterator[Stage]:
    with Redis.from_url(url) as client:
        client.flushall()
    with tempfile.TemporaryDirectory(dir=folder) as own:
        stage = Stage(Path(own), url)
        try:
            yield stage
        finally:
            forget(stage.app)
            stage.app.close()


def rate(spans: Sequence[Span]) -> float:
    """Bodies a second, from the first to the last."""
    return (len(spans) - 1) / (spans[-1].began - spans[0].began)
