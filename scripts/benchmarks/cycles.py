"""How many times a second one client can take and free a lock, and how long a cycle takes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping

from celery_dlock.core.state import Claim, Outcome, Run
from celery_dlock.registry import open_backend
from celery_dlock.stores.base import BackendOptions, LockBackend
from scripts.benchmarks.measure import Measured, take_turns

TTL = 30_000_000

#: Returns the seconds that count, if these are not all of it.
Cycle = Callable[[], float | None]


def compare(contestants: Mapping[str, Cycle], times: int, rounds: int) -> list[Measured]:
    """Each contestant's cycles, *times* a round, in turns."""
    for cycle in contestants.values():
        for _ in range(max(3, times // 10)):  # scripts are loaded, connections open
            cycle()
    runs = {name: lambda cycle=cycle: timed(cycle, times) for name, cycle in contestants.items()}
    return [
        Measured(
            name,
            tuple(times / sum(durations) for durations in found),
            tuple(duration for durations in found for duration in durations),
        )
        for name, found in take_turns(runs, rounds).items()
    ]


def timed(cycle: Cycle, times: int) -> list[float]:
    durations: list[float] = []
    for _ in range(times):
        started = time.perf_counter()
        seconds = cycle()
        durations.append(time.perf_counter() - started if seconds is None else seconds)
    return durations


def store(url: str) -> LockBackend:
    return open_backend(url, BackendOptions(prefix=f"bench-{uuid.uuid4().hex}"))


def ours(backend: LockBackend, key: str = "order:1") -> Cycle:
    """One cycle through the store's own interface: enter, and leave without a trace."""

    def cycle() -> None:
        claim = Claim(key, "task:0:0", uuid.uuid4().hex, backend.lease_of(TTL))
        assert isinstance(backend.enter(claim).verdict, Run)
        backend.leave(claim, Outcome.OVER)

    return cycle
