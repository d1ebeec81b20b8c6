"""How long a key lies idle between two bodies: from the end of the one to the start of the next."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

from scripts.benchmarks.measure import take_turns
from scripts.benchmarks.notes import Span
from scripts.benchmarks.stage import staged

BODY = 0.005


def handover(
    folder: Path, url: str, tasks: int = 500, colliding: int = 20, rounds: int = 2
) -> dict[str, list[float]]:
    """Seconds of each. Those that come back by themselves take seconds, so there are fewer."""

    def published() -> list[float]:
        with staged(folder, url) as stage, stage.worker("prefork", concurrency=2):
            for number in range(tasks):
                stage.send("plain", "hot", BODY, time.monotonic())
                stage.notes.wait_for(number + 1)
            return [span.began - span.sent for span in stage.notes.spans()]

    def woken() -> list[float]:
        with staged(folder, url) as stage, stage.worker("prefork", concurrency=2):
            stage.let_wait("hot", BODY, tasks)
            stage.go("first")
            return gaps(stage.notes.wait_for(tasks + 1))

    def coming_back(name: str) -> list[float]:
        with staged(folder, url) as stage, stage.worker("prefork", concurrency=2):
            for _ in range(colliding):
                stage.send(name, "hot", BODY)
            return gaps(stage.notes.wait_for(colliding, timeout=600))

    found = take_turns(
        {
            "plain, published to started": published,
            "queue": woken,
            "reschedule": lambda: coming_back("rescheduled"),
            "redis-py's lock, self.retry()": lambda: coming_back("by_hand"),
        },
        rounds,
    )
    return {name: [gap for turn in turns for gap in turn] for name, turns in found.items()}


def gaps(spans: list[Span]) -> list[float]:
    """Between each body and the next."""
    return [after.began - before.ended for before, after in pairwise(spans)]
