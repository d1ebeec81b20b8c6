"""Tasks a second through real worker processes, with and without a lock."""

from __future__ import annotations

from pathlib import Path

from scripts.benchmarks.measure import Measured, in_turns
from scripts.benchmarks.stage import rate, staged


def uncontended(
    folder: Path, url: str, seconds: float, tasks: int, rounds: int = 3
) -> list[Measured]:
    """Every task has a key of its own; the broker is full before the worker starts."""

    def drained(name: str) -> float:
        with staged(folder, url) as stage:
            for number in range(tasks):
                stage.send(name, f"order:{number}", seconds)
            with stage.worker("prefork", concurrency=2):
                return rate(stage.notes.wait_for(tasks))

    return in_turns(
        {
            "plain tasks": lambda: drained("plain"),
            "locked, every key its own": lambda: drained("queued"),
        },
        rounds,
    )


def hot_key(folder: Path, url: str, seconds: float, tasks: int, rounds: int = 3) -> list[Measured]:
    """All want one key, and *tasks* wait for it when the first leaves."""

    def serial() -> float:
        with staged(folder, url) as stage:
            for _ in range(tasks):
                stage.send("plain", "hot", seconds)
            with stage.worker("prefork", concurrency=1):
                return rate(stage.notes.wait_for(tasks))

    def queued() -> float:
        with staged(folder, url) as stage, stage.worker("prefork", concurrency=2):
            stage.let_wait("hot", seconds, tasks)
            stage.go("first")
            return rate(stage.notes.wait_for(tasks + 1)[1:])

    return in_turns({"plain tasks, one serial process": serial, "one key's queue": queued}, rounds)
