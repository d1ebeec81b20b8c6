"""One run of one body under one of its locks, put together from what it saw."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tests.chaos.resource import Seen


@dataclass(frozen=True, slots=True)
class Run:
    """From when to when the body ran, and for how much of that it could trust its lease.

    What it saw at one instant holds for the time before it, back to the grant: a lease that was
    lost stays lost. ``ended`` says that it came to its last line. A run with several locks is here
    once for each, under the same ``id``.
    """

    id: str
    task: str
    attempt: int
    key: str
    resource: str
    token: int
    first: float
    last: float
    ended: bool
    live: bool
    trusted_from: float
    trusted_to: float
    asked: float

    @property
    def reads(self) -> bool:
        return not self.token

    def __str__(self) -> str:
        span = f"{self.trusted_from:.3f} to {self.trusted_to:.3f}"
        return f"{self.task[:8]} with token {self.token} ({span})"


def runs_of(seen: Sequence[Seen]) -> list[Run]:
    """The runs, in the order in which they began."""
    by_run: dict[tuple[str, str], list[Seen]] = defaultdict(list)
    for each in seen:
        by_run[each.run, each.key].append(each)
    return sorted(map(_run, by_run.values()), key=lambda run: run.first)


def _run(seen: Sequence[Seen]) -> Run:
    instants = [each.at for each in seen]
    trusted = [each.at for each in seen if each.trusted]
    return Run(
        id=seen[0].run,
        task=seen[0].task,
        attempt=seen[0].attempt,
        key=seen[0].key,
        resource=seen[0].resource,
        token=seen[0].token,
        first=min(instants),
        last=max(instants),
        ended=any(each.ending for each in seen),
        live=bool(trusted),
        trusted_from=min(instants),
        trusted_to=max(trusted, default=min(instants)),
        asked=seen[0].asked,
    )
