"""How long a script of ours keeps the Redis server, by its own count: everybody else waits then."""

from __future__ import annotations

import statistics
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
from tests.benchmarks.cycles import TTL, ours, store

MESSAGE = b"x" * 800


def show_scripts(console: Console, url: str) -> None:
    """One table; each row is compared with the first."""
    rows = script_times(url)
    (bare, *_) = rows.values()
    title = "Redis: the server's own time for a script"
    table = Table("", "µs", "times the first", title=title, title_justify="left", min_width=76)
    for name, each in rows.items():
        table.add_row(name, f"{each:.0f}", f"{each / bare:.1f}")
    console.print(table)


def script_times(url: str, tasks: int = 500, rounds: int = 5) -> dict[str, float]:
    """In microseconds, the median of *rounds*, in each of which *tasks* wait for one key."""
    with closing(Redis.from_url(url)) as client:
        found = [_round(client, url, tasks) for _ in range(rounds)]
    return {name: statistics.median(each[name] for each in found) for name in found[0]}


def _round(client: Redis, url: str, tasks: int) -> dict[str, float]:
    with closing(store(url)) as backend:
        first, *others = (_claim(backend, number) for number in range(tasks))
        cycle = ours(backend)
        cycle()  # every script is loaded
        bare = _mean(client, [cycle] * tasks)
        assert isinstance(backend.enter(first).verdict, Run)
        parked = _mean(client, (partial(_park, backend, each) for each in others))
        turns = _mean(
            client, (partial(_hand_on, backend, *two) for two in pairwise([first, *others]))
        )
        backend.leave(others[-1], Outcome.OVER)
    return {
        "a free key is taken, and released": bare,
        f"one more of {tasks} is parked": parked,
        "it is released, and the next takes its turn": turns,
    }


def _mean(client: Redis, runs: Iterable[Callable[[], None]]) -> float:
    client.config_resetstat()
    for run in runs:
        run()
    return float(client.info("commandstats")["cmdstat_evalsha"]["usec_per_call"])


def _claim(backend: LockBackend, number: int) -> Claim:
    lease, nonce = backend.lease_of(TTL), uuid.uuid4().hex
    return Claim("order:2", f"task-{number}:0:0", nonce, lease, wait=WaitMode.QUEUE)


def _park(backend: LockBackend, claim: Claim) -> None:
    assert isinstance(backend.enter(claim, MESSAGE).verdict, Park)


def _hand_on(backend: LockBackend, holder: Claim, following: Claim) -> None:
    (woken,) = backend.leave(holder, Outcome.OVER).wakes
    assert woken.task == following.task
    assert isinstance(backend.enter(following, MESSAGE).verdict, Run)
