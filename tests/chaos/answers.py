"""What a store has answered, held to what every order of the calls has in common.

It is told nothing by the store but its answers: a store that keeps no ledger is held to this alone
(`replay.py`). What is checked must hold whatever the order of calls that overlap was:

* who was told that it has a slot, and has neither left nor let its lease end, has it alone, and a
  reader meets no writer;
* of two grants of a slot one after the other the later has the larger token;
* a task that was told that it is done is not told to run, as long as it is remembered;
* a lease that was left is not renewed;
* a message that is woken was given for that task.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from celery_dlock.core.lease import SECOND, margin
from celery_dlock.core.operations import Leave
from celery_dlock.core.state import Left, Outcome, Renewed, Run
from celery_dlock.stores.base import Reply
from tests.chaos.trace import Spoken, Swap, Sweep


@dataclass(frozen=True, slots=True)
class Held:
    """For how long a claim had its slot for certain."""

    task: str
    nonce: str
    slot: int
    token: int
    begin: float
    end: float

    def excludes(self, other: Held) -> bool:
        if self.nonce == other.nonce:
            return False
        if self.token and other.token:
            return self.slot == other.slot
        return bool(self.token or other.token)

    def __str__(self) -> str:
        return f"{self.task} with token {self.token} ({self.begin:.3f} to {self.end:.3f})"


def untrue(spoken: Sequence[Spoken]) -> Iterator[str]:
    """Each answer that no order of the calls explains."""
    spoken = [each for each in spoken if not isinstance(each.what, Sweep | Swap)]
    by_key: dict[str, list[Spoken]] = defaultdict(list)
    for each in spoken:
        by_key[each.operation.claim.key].append(each)
    for key, of_key in by_key.items():
        for what in (*_together(_held(of_key)), *_fell(of_key), *_again(of_key), *_renewed(of_key)):
            yield f"{key}: {what}"
    yield from _unheard_of(spoken)


def _verdict(each: Spoken) -> object:
    return each.answer.verdict if isinstance(each.answer, Reply) else each.answer


def _leaves(spoken: Sequence[Spoken]) -> dict[str, list[Spoken]]:
    found: dict[str, list[Spoken]] = defaultdict(list)
    for each in spoken:
        if isinstance(each.operation, Leave):
            found[each.operation.claim.nonce].append(each)
    return found


def _held(spoken: Sequence[Spoken]) -> list[Held]:
    left = {nonce: min(each.called for each in of) for nonce, of in _leaves(spoken).items()}
    runs: dict[str, Run] = {}
    held: list[Held] = []
    for each in spoken:
        claim, verdict = each.operation.claim, _verdict(each)
        if isinstance(verdict, Run):
            runs[claim.nonce] = verdict
        if each.answered is None or not isinstance(verdict, Run | Renewed):
            continue
        if claim.nonce not in runs:  # nobody heard of the grant
            continue
        run, ttl = runs[claim.nonce], claim.ttl / SECOND
        end = min(each.called + ttl - margin(ttl), left.get(claim.nonce, inf))
        if end > each.answered:
            held.append(Held(claim.task, claim.nonce, run.slot, run.token, each.answered, end))
    return held


def _together(held: Sequence[Held]) -> Iterator[str]:
    there: list[Held] = []
    for each in sorted(held, key=lambda each: each.begin):
        there = [other for other in there if other.end > each.begin]
        for other in there:
            if each.excludes(other):
                yield f"{other} and {each} have it at once"
        there.append(each)


def _fell(spoken: Sequence[Spoken]) -> Iterator[str]:
    grants = [
        (each, verdict)
        for each in spoken
        if isinstance(verdict := _verdict(each), Run) and verdict.token
    ]
    for number, (later, run) in enumerate(grants):
        for earlier, before in grants[:number]:
            if (
                earlier.answered is not None
                and earlier.answered < later.called
                and before.slot == run.slot
                and before.token >= run.token
                and earlier.operation.claim.nonce != later.operation.claim.nonce
            ):
                yield f"token {run.token} was given after {before.token}"


def _again(spoken: Sequence[Spoken]) -> Iterator[str]:
    done: dict[str, float] = {}
    for each in spoken:
        operation, verdict, at = each.operation, _verdict(each), each.answered
        if isinstance(operation, Leave) and at is not None:
            if operation.outcome is Outcome.DONE and verdict == Left(carried=True):
                done.setdefault(operation.claim.task, at)
        elif isinstance(verdict, Run) and done.get(operation.claim.task, inf) < each.called:
            yield f"{operation.claim.task} is done, and was told to run"


def _renewed(spoken: Sequence[Spoken]) -> Iterator[str]:
    left = {
        nonce: min((each.answered for each in of if each.answered is not None), default=inf)
        for nonce, of in _leaves(spoken).items()
    }
    for each in spoken:
        claim = each.operation.claim
        if isinstance(_verdict(each), Renewed) and left.get(claim.nonce, inf) < each.called:
            yield f"{claim.task} had left, and was renewed"


def _unheard_of(spoken: Sequence[Spoken]) -> Iterator[str]:
    given: dict[str, set[bytes]] = defaultdict(set)
    for each in spoken:
        message = getattr(each.operation, "message", None)
        if message is not None:
            given[each.operation.claim.key].add(message)
    for each in spoken:
        for wake in each.answer.wakes if isinstance(each.answer, Reply) else ():
            if wake.message not in given[wake.key]:
                yield f"{wake.key}: a message of {wake.task} is woken that nobody gave"
