"""What an operation costs where others want the key, beside the same where it is free.

On Redis that is how long a script keeps the server, by its own count: everybody else waits then.
Other stores have no such count, and it is what the caller waits for.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from itertools import pairwise

from redis import Redis
from rich.console import Console
from rich.table import Table

from celery_dlock.core.state import Claim, Outcome, Park, Run, WaitMode
from celery_dlock.stores.base import LockBackend
from scripts.benchmarks.cycles import TTL, ours, store

MESSAGE = b"x" * 800

#: The mean of these runs, in microseconds for each operation of which one consists of so many.
Mean = Callable[[Iterable[Callable[[], object]], int], float]


def show_scripts(console: Console, url: str) -> None:
    """By the count of the Redis server at *url*."""
    with closing(Redis.from_url(url)) as client:
        rows = operation_times(url, partial(_counted, client))
    _show(console, "Redis: the server's own time for a script", rows)


def show_operations(console: Console, name: str, url: str) -> None:
    """Of the store at *url*, as the caller sees it."""
    _show(console, f"{name}: what the caller waits for", operation_times(url, _waited, tasks=100))


def _show(console: Console, title: str, rows: dict[str, float]) -> None:
    """One table; each row is compared with the first."""
    (bare, *_) = rows.values()
    table = Table("", "µs", "times the first", title=title, title_justify="left", min_width=76)
    for name, each in rows.items():
        table.add_row(name, f"{each:.0f}", f"{each / bare:.1f}")
    console.print(table)


def operation_times(url: str, mean: Mean, tasks: int = 500, rounds: int = 5) -> dict[str, float]:
    """In microseconds, the median of *rounds*, in each of which *tasks* wait for one key."""
    found = [_round(url, mean, tasks) for _ in range(rounds)]
    return {name: statistics.median(each[name] for each in found) for name in found[0]}


def _round(url: str, mean: Mean, tasks: int) -> dict[str, float]:
    with closing(store(url)) as backend:
        first, *others = (claim_of(backend, number) for number in range(tasks))
        cycle = ours(backend)
        cycle()  # every script is loaded
        bare = mean([cycle] * tasks, 2)
        assert isinstance(backend.enter(first).verdict, Run)
        parked = mean((partial(park, backend, each) for each in others), 1)
        turns = mean((partial(hand_on, backend, *two) for two in pairwise([first, *others])), 2)
        backend.leave(others[-1], Outcome.OVER)
    return {
        "a free key is taken, and released": bare,
        f"one more of {tasks} is parked": parked,
        "it is released, and the next takes its turn": turns,
    }


def _counted(client: Redis, runs: Iterable[Callable[[], object]], _: int) -> float:
    client.config_resetstat()
    for run in runs:
        run()
    return float(client.info("commandstats")["cmdstat_evalsha"]["usec_per_call"])


def _waited(runs: Iterable[Callable[[], object]], operations: int) -> float:
    return statistics.mean(1e6 * time_of(run) for run in runs) / operations


def time_of(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def claim_of(backend: LockBackend, number: int) -> Claim:
    lease, nonce = backend.lease_of(TTL), uuid.uuid4().hex
    return Claim("order:2", f"task-{number}:0:0", nonce, lease, wait=WaitMode.QUEUE)


def park(backend: LockBackend, claim: Claim) -> None:
    assert isinstance(backend.enter(claim, MESSAGE).verdict, Park)


def hand_on(backend: LockBackend, holder: Claim, following: Claim) -> None:
    (woken,) = backend.leave(holder, Outcome.OVER).wakes
    assert woken.task == following.task
    assert isinstance(backend.enter(following, MESSAGE).verdict, Run)
