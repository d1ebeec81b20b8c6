"""Was everything kept that was promised? Asked of what is there when all is over.

It reads what the bodies wrote, what was sent, when something was struck, and what is left in the
store and in the broker. It knows nothing of how the store decides.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tests.chaos.faults import Struck
from tests.chaos.plan import KEYS
from tests.chaos.resource import Effect, Seen
from tests.chaos.runs import Run, runs_of
from tests.chaos.sender import Sent
from tests.chaos.turns import Passing, out_of_turn, run_again
from tests.services.campaign import Violation


class Check(StrEnum):
    """What is promised."""

    MISSING = "every task has its effect"
    TWICE = "and has it once"
    OVERLAP = "no two live holders"
    TOKENS = "tokens grow"
    ORDER = "first come, first woken"
    REPEATED = "what is finished does not run again"
    LOCKED = "no key is left locked"
    LEFT = "no message is left behind"


@dataclass(frozen=True, slots=True)
class Evidence:
    """All there is to judge by. *locked* and *left* say what was found when all was over."""

    sent: Sequence[Sent]
    effects: Sequence[Effect]
    seen: Sequence[Seen]
    struck: Sequence[Struck]
    locked: Sequence[str] = ()
    left: Sequence[str] = ()
    ttl: float = 1.5


def violations(evidence: Evidence) -> list[Violation]:
    """Every broken promise, in the order of the checks."""
    runs = runs_of(evidence.seen)
    found: list[tuple[Check, Iterator[str]]] = [
        (Check.MISSING, _missing(evidence)),
        (Check.TWICE, _twice(evidence)),
        (Check.OVERLAP, _overlaps(runs)),
        (Check.TOKENS, _tokens(evidence, runs)),
        (Check.ORDER, (each.what for each in passings(evidence) if not each.explained)),
        (Check.REPEATED, run_again(runs, evidence.struck, evidence.ttl)),
        (Check.LOCKED, iter(evidence.locked)),
        (Check.LEFT, iter(evidence.left)),
    ]
    return [Violation(check, what) for check, whats in found for what in whats]


def passings(evidence: Evidence) -> Iterator[Passing]:
    """Who was passed over, explained or not."""
    return out_of_turn(evidence.sent, runs_of(evidence.seen), evidence.struck, evidence.ttl)


def _missing(evidence: Evidence) -> Iterator[str]:
    there = {effect.task for effect in evidence.effects}
    for sent in evidence.sent:
        if sent.id not in there:
            yield f"{sent.id} on {sent.key.name} has none"


def _twice(evidence: Evidence) -> Iterator[str]:
    sent = {task.id for task in evidence.sent}
    for task, count in Counter(effect.task for effect in evidence.effects).items():
        if count > 1:
            yield f"{task} has {count}"
        if task not in sent:
            yield f"{task} was never sent"


def _overlaps(runs: Sequence[Run]) -> Iterator[str]:
    """A slot has one live holder at a time, a key as many as its limit."""
    limits = {key.name: key.limit for key in KEYS}
    for key, of_key in _grouped(runs, lambda run: run.key).items():
        yield from _crowds(of_key, limits[key], key)
    for resource, of_slot in _grouped(runs, lambda run: run.resource).items():
        yield from _crowds(of_slot, 1, resource)


def _crowds(runs: Sequence[Run], limit: int, where: str) -> Iterator[str]:
    live: list[Run] = []
    for run in sorted(runs, key=lambda run: run.trusted_from):
        live = [other for other in live if other.trusted_to > run.trusted_from] + [run]
        if len(live) > limit:
            yield f"{len(live)} at once on {where}: {', '.join(map(str, live))}"


def _tokens(evidence: Evidence, runs: Sequence[Run]) -> Iterator[str]:
    for resource, of_slot in _grouped(runs, lambda run: run.resource).items():
        in_time = sorted(of_slot, key=lambda run: run.trusted_from)
        for earlier, later in itertools.pairwise(in_time):
            if later.token <= earlier.token:
                yield f"on {resource} {later} came after {earlier}"
    last: dict[str, int] = {}
    for effect in evidence.effects:
        if effect.token <= last.get(effect.resource, 0):
            yield f"{effect.task} wrote to {effect.resource} behind a newer token"
        last[effect.resource] = effect.token


def _grouped(runs: Sequence[Run], name: Callable[[Run], str]) -> dict[str, list[Run]]:
    """The runs that could trust their lease at all, by *name*."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.live:
            groups[name(run)].append(run)
    return groups
