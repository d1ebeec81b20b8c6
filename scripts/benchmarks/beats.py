"""Beats side by side: the same fault for each, at the same time, and what became of their ticks."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from scripts.benchmarks.beat_app import EVERY
from scripts.benchmarks.beat_counts import Counts, Window, count, silence
from scripts.benchmarks.beat_faults import TTL, Fault
from scripts.benchmarks.beat_site import Contestant, Site, ticks_worker
from tests.services.redis import RedisServer

DLOCK = {"dlock_url": "STORE", "dlock_ttl": TTL}
REDBEAT = {"redbeat_redis_url": "STORE"}

#: What RedBeat has to be told in order to take over within seconds, and not to end at its start.
TUNED = {
    **REDBEAT,
    "redbeat_lock_timeout": TTL,
    "beat_max_loop_interval": 1,
    "redbeat_redis_options": {"retry_period": 60},
}

OURS = Contestant("dlock", "dlock", DLOCK)
RETIMED = Contestant(f"RedBeat, lock of {TTL} s", "redbeat.RedBeatScheduler", TUNED)
PLAIN = Contestant("two plain beats", "celery.beat:PersistentScheduler")
CONTESTANTS = (
    OURS,
    Contestant("RedBeat as it comes", "redbeat.RedBeatScheduler", REDBEAT),
    RETIMED,
    PLAIN,
)

#: Seconds that count, before a fault and from then on; it strikes in the first of the latter.
BEFORE, AFTER = 3.0, 13.0


@dataclass(frozen=True, slots=True)
class Fared:
    """How one contestant fared, once."""

    contestant: str
    counts: Counts
    silent: float
    to_the_end: bool
    ends: int


def compare(folder: Path, fault: Fault, contestants: Sequence[Contestant]) -> list[Fared]:
    """*fault* for each of *contestants* at the same time, on a Redis of its own."""
    folder.mkdir()
    with ExitStack() as stack, ThreadPoolExecutor(len(contestants)) as pool:
        broker = stack.enter_context(RedisServer())
        stack.enter_context(ticks_worker(folder, broker))
        sites = [Site(folder / str(n), who, broker) for n, who in enumerate(contestants)]

        def at_all(what: Callable[[Site], None]) -> None:
            list(pool.map(what, sites))

        for site in sites:
            stack.enter_context(site.opened())
        at_all(lambda site: settle(site, fault))
        window = window_from(time.monotonic(), BEFORE + AFTER)
        time.sleep(BEFORE + random.random())  # dlock's ticks come at whole seconds
        at_all(fault.strike)
        time.sleep(max(0.0, window.ended - time.monotonic()))
        return [judge(site, window) for site in sites]


def settle(site: Site, fault: Fault) -> None:
    """The first leads, if one does, and the second has had the time to ask."""
    site.start(site.first)
    site.wait_for_ticks(1)
    if fault.there:
        site.start(site.second)
    site.wait_for_ticks(len(site.ticks()) + 4)


def window_from(began: float, seconds: float) -> Window:
    return Window(began, began + seconds, time.time() - time.monotonic())


def judge(site: Site, window: Window) -> Fared:
    counts = sum((count(site.ticks(entry), EVERY[entry], window) for entry in EVERY), Counts())
    silent, to_the_end = silence(site.ticks(), window)
    return Fared(site.contestant.name, counts, silent, to_the_end, site.ends)
