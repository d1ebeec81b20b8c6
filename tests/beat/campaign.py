"""Several crews of beats side by side, each with faults of its own, and the checker at the end.

They share a lock store and a worker and know nothing of each other: each has a key prefix, a clock
and a journal of its own.
"""

from __future__ import annotations

import math
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.beat.checker import violations
from tests.beat.crew import Crew, worker
from tests.beat.evidence import Evidence
from tests.beat.group import Group
from tests.beat.plan import Kind, draw
from tests.beat.ways import KINDS, Server, ServerWays
from tests.beat.ways import Kind as Store
from tests.services.brokers import over_redis
from tests.services.campaign import Violation
from tests.services.proxy import proxy_to
from tests.services.redis import RedisServer
from tests.services.worker import Worker

TTL = 3.0

#: Seconds of faults.
LENGTH = 8.0

BEATS = 3

#: Those to which each beat has a way of its own.
STORES = {kind.name: kind for kind in KINDS if kind.start is not None}


@dataclass(frozen=True, slots=True)
class Figures:
    """What became of one group. *twice* are the plain tasks that ran twice, as they were told.

    *took* are the seconds from a leader that was killed, or shut down, to the next one, where no
    other fault came between.
    """

    seed: int
    ran: int
    twice: int
    repeated: int
    leads: int
    struck: Counter[Kind]
    took: Mapping[Kind, Sequence[float]]
    violations: tuple[Violation, ...]

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.struck.total()} faults, {self.leads} leads, "
            f"{self.ran} ticks, {self.repeated} of them sent again, {self.twice} ran twice, "
            f"{len(self.violations)} violations"
        )


def play(folder: Path, seeds: Sequence[int], kind: Store = STORES["redis"]) -> list[Figures]:
    """Play what *seeds* draw, all at once; the beats' logs are below *folder* afterwards."""
    with open_groups(folder, seeds, kind) as (groups, runs):
        began = time.monotonic()
        while not all(group.over for group in groups):
            for group in groups:
                group.act(time.monotonic() - began)
            time.sleep(0.02)
        ends = [group.crew.catch_up() for group in groups]
        for group in groups:
            group.crew.shut_down()
        groups[0].crew.drain(runs)
        return [_figures(group, to) for group, to in zip(groups, ends, strict=True)]


def _figures(group: Group, to: datetime) -> Figures:
    evidence = group.crew.evidence(to)
    runs = Counter((each.entry, each.due) for each in evidence.ran)
    return Figures(
        seed=group.seed,
        ran=len(runs),
        twice=sum(count > 1 for count in runs.values()),
        repeated=len(evidence.repeated),
        leads=len(evidence.terms),
        struck=Counter(each.kind for each in group.struck),
        took={kind: list(_took(group, evidence, kind)) for kind in (Kind.KILL, Kind.STOP)},
        violations=tuple(violations(evidence)),
    )


def _took(group: Group, evidence: Evidence, kind: Kind) -> Iterator[float]:
    faults = [*(each.at for each in group.struck), math.inf]
    for each, following in zip(group.struck, faults[1:], strict=True):
        if each.kind is kind and each.led and not each.beside:
            began = min((t.began for t in evidence.terms if t.began > each.at), default=math.inf)
            if began < following:
                yield began - each.at


@contextmanager
def open_groups(
    folder: Path, seeds: Sequence[int], kind: Store
) -> Iterator[tuple[list[Group], Worker]]:
    """A group for each of *seeds*, whose entries have run already, and the worker of them all."""
    with ExitStack() as stack:
        broker = stack.enter_context(RedisServer())
        assert kind.start is not None
        store = kind.start()
        stack.enter_context(store)
        settings = {**over_redis(broker.port), "dlock_ttl": TTL}
        groups = [_group(stack, folder, seed, kind, store, settings) for seed in seeds]
        own = {"dlock_url": store.url, "dlock_key_prefix": uuid.uuid4().hex}
        runs = stack.enter_context(worker(folder, {**settings, **own}))
        for group in groups:
            group.crew.settle()
        yield groups, runs


def _group(
    stack: ExitStack,
    folder: Path,
    seed: int,
    kind: Store,
    store: Server,
    settings: Mapping[str, Any],
) -> Group:
    own = folder / str(seed)
    own.mkdir()
    proxies = [stack.enter_context(proxy_to(store.port)) for _ in range(BEATS)]
    ways = ServerWays(kind.name, store, proxies)
    crew = Crew(own, {**settings, "dlock_key_prefix": uuid.uuid4().hex}, ways.urls)
    stack.callback(crew.kill)
    crew.start()
    return Group(seed, crew, ways, draw(seed, LENGTH, TTL))
