"""Who was passed over, who came between, and who ran again; and which of it a fault explains.

A task whose run is lost before the first line of its body leaves no trace here. Its key then
stays silent for as long as its lease lasts, unless the fault was of a kind that frees it at once
or makes the task come again as a new one: these explain what happens shortly after them. Nothing
else does: least of all that the store stood still for a while, by which nobody loses a turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.chaos.faults import Struck
from tests.chaos.plan import Kind
from tests.chaos.runs import Run
from tests.chaos.sender import Sent
from tests.chaos.ways import Order

#: Faults for which the store may not hear, or its answer may not be heard.
OF_STORE = frozenset(
    {
        *(Kind.CUT_STORE, Kind.LOSE_REPLIES, Kind.STORE_AWAY),
        *(Kind.KILL_MEMBER, Kind.PAUSE_MEMBER, Kind.PAUSE_STORE),
    }
)

#: Faults after which a task may have lost its turn without its key falling silent. While the store
#: stands still none does: nobody overtakes a task that asks just then.
TAKE_TURNS = (OF_STORE | {Kind.KILL_CHILD, Kind.STOP_COLD}) - {Kind.PAUSE_STORE}

#: Faults that no body and no leave notices.
SPARE_BODIES = frozenset({Kind.COPY, Kind.RESTART_BROKER})


@dataclass(frozen=True, slots=True)
class Passing:
    """Somebody was passed over; *explained* if a fault may have taken its turn from it."""

    what: str
    explained: bool


def out_of_turn(
    sent: Sequence[Sent], runs: Sequence[Run], struck: Sequence[Struck], ttl: float
) -> Iterator[Passing]:
    """Each task that another one passed, and whether a fault explains it."""
    started: dict[str, Run] = {}
    by_key: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        started.setdefault(run.task, run)
        by_key[run.key].append(run)
    takers = [each for each in struck if each.kind in TAKE_TURNS]
    pauses = [each for each in struck if each.kind is Kind.PAUSE_STORE]
    silencers = [each for each in struck if each.kind not in {*SPARE_BODIES, Kind.PAUSE_STORE}]
    for passed in (each for each in sent if each.key.order is not Order.NONE):
        mine = started.get(passed.id)
        later = [
            started[other.id]
            for other in sent
            if other.key == passed.key and other.id in started and passed.before(other)
        ]
        first = min(later, key=lambda run: run.first, default=None)
        if first is None or passed.came is None or (mine and mine.first < first.first):
            continue
        silent = _falls_silent(by_key[passed.key.name], passed.came, first.first, 0.8 * ttl)
        paused = was_struck(pauses, passed.came, first.first)
        if paused:  # all keys were silent then: that alone says nothing
            silent = silent and was_struck(silencers, passed.came, first.first)
        explained = silent or was_struck(takers, first.first - 2 * ttl, first.first)
        yield Passing(f"{passed.id[:8]} came first; {first} had its turn before it", explained)


def run_again(runs: Sequence[Run], struck: Sequence[Struck], ttl: float) -> Iterator[str]:
    """Each attempt that ran although a run of it had ended, and nothing happened as that left.

    A copy of an attempt before the last, which ended in a retry, is another one.
    """
    enders = [each for each in struck if each.kind not in SPARE_BODIES]
    ended: dict[tuple[str, int], Run] = {}
    for run in runs:
        before = ended.get((run.task, run.attempt))
        if (
            before is not None
            and run.first > before.last
            and not was_struck(enders, before.first, before.last + ttl)
        ):
            yield f"{run} had ended well before as {before}"
        if run.ended:
            ended[run.task, run.attempt] = run


def came_between(
    sent: Sequence[Sent], runs: Sequence[Run], struck: Sequence[Struck]
) -> Iterator[str]:
    """Each run on a key that a task keeps for its retry, or the next of its chain, before that."""
    enders = [each for each in struck if each.kind not in SPARE_BODIES]
    follows = {each.id: each.follows.id for each in sent if each.follows and each.key.chained}
    for name in {each.key.name for each in sent if each.key.reserves or each.key.chained}:
        retried: dict[tuple[str, int], Run] = {}
        latest: dict[str, Run] = {}
        of_key = [run for run in runs if run.key == name and run.live]
        for run in of_key:
            before = retried.get((run.task, run.attempt - 1)) or latest.get(
                follows.get(run.task, "")
            )
            retried[run.task, run.attempt] = latest[run.task] = run
            if before is None or was_struck(enders, before.first, run.first):
                continue
            for other in of_key:
                if other.task not in (run.task, before.task) and (
                    before.last < other.first < run.first
                ):
                    what = "its retry" if run.task == before.task else "the next of its chain"
                    yield f"{other} came between {before} and {what}"


def came_early(sent: Sequence[Sent], runs: Sequence[Run]) -> Iterator[str]:
    """Each run of a task that follows one of which no run had come to its end."""
    ended: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: run.last, reverse=True):
        if run.ended:
            ended[run.task] = run
    follows = {each.id: each.follows.id for each in sent if each.follows}
    for run in runs:
        before = ended.get(follows.get(run.task, ""))
        if run.task in follows and (before is None or run.first < before.last):
            yield f"{run} began before {follows[run.task][:8]}, which it follows, had ended"


def _falls_silent(runs: Sequence[Run], begin: float, end: float, length: float) -> bool:
    """Whether no live run is seen on a key for *length* seconds between *begin* and *end*."""
    at = begin
    for run in runs:
        if not run.live or run.trusted_to <= at:
            continue
        if min(run.first, end) - at >= length:
            return True
        at = max(at, run.trusted_to)
        if at >= end:
            return False
    return end - at >= length


def was_struck(struck: Sequence[Struck], begin: float, end: float) -> bool:
    """Whether a fault lasted at any time from *begin* to *end*."""
    return any(each.begin <= end and each.end >= begin for each in struck)
