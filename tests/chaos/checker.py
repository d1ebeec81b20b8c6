"""Was everything kept that was promised? Asked of what is there when all is over.

It reads what the bodies wrote, what was sent, when something was struck, and what is left in the
store and in the broker. It knows nothing of how the store decides.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tests.chaos.faults import Struck
from tests.chaos.instead import Fates, doubled
from tests.chaos.resource import Effect, Seen
from tests.chaos.runs import Run, runs_of
from tests.chaos.sender import Sent
from tests.chaos.stage import End
from tests.chaos.turns import Passing, came_between, came_early, out_of_turn, run_again
from tests.chaos.ways import LIMITS, READ
from tests.services.campaign import Violation


class Check(StrEnum):
    """What is promised."""

    MISSING = "every task has its effect, or another one for it"
    TWICE = "and has it once"
    DOUBLED = "one call is enough"
    OVERLAP = "no two live holders"
    TOKENS = "tokens grow"
    ORDER = "first come, first woken"
    RESERVED = "a key is kept for a retry, and for the next of a chain"
    EARLY = "what follows comes after"
    COOLED = "a key cools down"
    REPEATED = "what is finished does not run again"
    LOCKED = "no key is left locked"
    LEFT = "no message is left behind"


@dataclass(frozen=True, slots=True)
class Evidence:
    """All there is to judge by. *locked* and *left* say what was found when all was over.

    *unheard* are the releases that the store did not answer, for its machine was busy, say.
    """

    sent: Sequence[Sent]
    effects: Sequence[Effect]
    seen: Sequence[Seen]
    struck: Sequence[Struck]
    ends: Mapping[str, End] = field(default_factory=dict)
    unheard: Sequence[Struck] = ()
    locked: Sequence[str] = ()
    left: Sequence[str] = ()
    ttl: float = 1.5


def violations(evidence: Evidence) -> list[Violation]:
    """Every broken promise, in the order of the checks."""
    runs = runs_of(evidence.seen)
    found: list[tuple[Check, Iterator[str]]] = [
        (Check.MISSING, _missing(evidence, runs)),
        (Check.TWICE, _twice(evidence)),
        (Check.DOUBLED, doubled(evidence.sent, runs, evidence.struck)),
        (Check.OVERLAP, _overlaps(runs)),
        (Check.TOKENS, _tokens(evidence, runs)),
        (Check.ORDER, (each.what for each in passings(evidence) if not each.explained)),
        (Check.RESERVED, came_between(evidence.sent, runs, evidence.struck)),
        (Check.EARLY, came_early(evidence.sent, runs)),
        (Check.COOLED, _warm(evidence, runs)),
        (Check.REPEATED, run_again(runs, [*evidence.struck, *evidence.unheard], evidence.ttl)),
        (Check.LOCKED, iter(evidence.locked)),
        (Check.LEFT, iter(evidence.left)),
    ]
    return [Violation(check, what) for check, whats in found for what in whats]


def passings(evidence: Evidence) -> Iterator[Passing]:
    """Who was passed over, explained or not."""
    return out_of_turn(evidence.sent, runs_of(evidence.seen), evidence.struck, evidence.ttl)


def _missing(evidence: Evidence, runs: Sequence[Run]) -> Iterator[str]:
    struck, ttl = evidence.struck, evidence.ttl
    fates = Fates(evidence.sent, evidence.effects, evidence.ends, runs, struck, ttl)
    return fates.wrong(evidence.sent)


def _twice(evidence: Evidence) -> Iterator[str]:
    known = {sent.id for sent in evidence.sent}
    unsure = {sent.call for sent in evidence.sent if sent.key.called and sent.tries > 1}
    for (task, resource), count in Counter((e.task, e.resource) for e in evidence.effects).items():
        if count > 1:
            yield f"{task} has {count} on {resource}"
    for effect in evidence.effects:
        if effect.task not in known and effect.call not in unsure:
            yield f"{effect.task} was never sent"


def _overlaps(runs: Sequence[Run]) -> Iterator[str]:
    """A slot has one live holder at a time, a key as many as its limit, and a reader no writer.

    Who has a key below another one reads that.
    """
    of_keys = _grouped(runs, lambda run: run.key)
    for key, of_key in of_keys.items():
        writers = [run for run in of_key if not run.reads]
        yield from _crowds(writers, LIMITS.get(key, 1), key)
        below = (runs for name, runs in of_keys.items() if name.startswith(f"{key}/"))
        readers = {r.id: r for r in itertools.chain(*below, of_key) if r.reads or r.key != key}
        for one, other in itertools.product(writers, readers.values()):
            if one.trusted_from < other.trusted_to and other.trusted_from < one.trusted_to:
                yield f"{one} writes and {other} reads {key}"
    for resource, of_slot in _grouped(runs, lambda run: run.resource).items():
        yield from _crowds([run for run in of_slot if not run.reads], 1, resource)


def _crowds(runs: Sequence[Run], limit: int, where: str) -> Iterator[str]:
    live: list[Run] = []
    for run in sorted(runs, key=lambda run: run.trusted_from):
        live = [other for other in live if other.trusted_to > run.trusted_from] + [run]
        if len(live) > limit:
            yield f"{len(live)} at once on {where}: {', '.join(map(str, live))}"


def _tokens(evidence: Evidence, runs: Sequence[Run]) -> Iterator[str]:
    for run in runs:
        if run.reads and run.key not in READ:
            yield f"{run} has none for {run.key}"
    for resource, of_slot in _grouped(runs, lambda run: run.resource).items():
        in_time = sorted(of_slot, key=lambda run: run.trusted_from)
        in_time = [run for run in in_time if not run.reads]
        for earlier, later in itertools.pairwise(in_time):
            if later.token <= earlier.token:
                yield f"on {resource} {later} came after {earlier}"
    last: dict[str, int] = {}
    for effect in evidence.effects:
        if not effect.token:
            continue
        if effect.token <= last.get(effect.resource, 0):
            yield f"{effect.task} wrote to {effect.resource} behind a newer token"
        last[effect.resource] = effect.token


def _warm(evidence: Evidence, runs: Sequence[Run]) -> Iterator[str]:
    """A run was granted its key after it was asked for, and before the body's first line."""
    cooldowns = {key.name: key.cooldown for sent in evidence.sent if (key := sent.key).cooldown}
    for name, cooldown in cooldowns.items():
        of_key = sorted((run for run in runs if run.key == name), key=lambda run: run.token)
        for earlier, later in itertools.pairwise(of_key):
            if later.first < earlier.asked + cooldown:
                yield f"on {name} {later} came too soon after {earlier}"


def _grouped(runs: Sequence[Run], name: Callable[[Run], str]) -> dict[str, list[Run]]:
    """The runs that could trust their lease at all, by *name*."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.live:
            groups[name(run)].append(run)
    return groups
