"""Sequences that random operations meet too seldom; each caught a planted defect they missed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from celery_dlock.core.machine import MAX_LOST_RUNS
from celery_dlock.core.state import WINDOW, Cause, Claim, Mode, Outcome, Wait
from celery_dlock.core.upkeep import CALLS_BEFORE_DEAD
from tests.contract.twins import KEY, SECOND

Operations = list[tuple[Any, ...]]


def _claim(task: str, wait: Wait = Wait.NOT, **others: Any) -> Claim:
    return Claim(KEY, task, "1", ttl=4 * SECOND, wait=wait, patience=60 * SECOND, **others)


def _enter(claim: Claim) -> tuple[Any, ...]:
    return ("enter", claim, claim.task.encode())


def _done_twice() -> Operations:
    """The second time does not lengthen the memory of the first."""
    claim = _claim("a", done_ttl=3 * SECOND)
    leave = ("leave", claim, Outcome.DONE, None)
    return [_enter(claim), leave, ("pass", 2 * SECOND), leave, ("pass", SECOND), _enter(claim)]


def _writer_ahead() -> Operations:
    """A reader does not overtake a writer that has a place."""
    holder, writer = _claim("a"), _claim("b", Wait.PLACE)
    reader = _claim("c", Wait.PLACE, mode=Mode.SHARED)
    leave = ("leave", holder, Outcome.OVER, None)
    return [_enter(holder), _enter(writer), _enter(reader), leave, _enter(reader), _enter(writer)]


def _never_answered() -> Operations:
    """The pause between two calls stops growing."""
    holder, parked = _claim("a"), _claim("b", Wait.QUEUE)
    later = [("pass", 700 * SECOND), ("reap", KEY)]
    return [_enter(holder), _enter(parked), *later * 12]


def _dies_again_and_again() -> Operations:
    """A task whose runs are lost is put aside with its message, and may be replayed."""
    mine = _claim("a", Wait.QUEUE, keep=True)
    dies = [_enter(mine), ("leave", mine, Outcome.ABANDONED, None)]
    again = [("replay", KEY, "a"), ("replay", KEY, "a"), _enter(mine)]
    return [*dies * MAX_LOST_RUNS, _enter(mine), _enter(_claim("b", Wait.QUEUE)), *again]


def _dies_and_is_not_put_aside() -> Operations:
    """Who was called to end is ended, and a copy of who runs once more waits for how that ends."""
    mine = _claim("a", Wait.QUEUE, keep=True)
    dies = [_enter(mine), ("leave", mine, Outcome.ABANDONED, None)] * MAX_LOST_RUNS
    ends = [("cancel", KEY, "a"), _enter(mine), ("leave", mine, Outcome.DONE, None)]
    copy = replace(_claim("a", Wait.QUEUE), nonce="2")
    return [*dies, *ends, *dies, _enter(_claim("a")), _enter(copy)]


def _nobody_reads_it() -> Operations:
    """A message that is called in vain is put aside, and the next one is called."""
    holder, parked, other = _claim("a"), _claim("b", Wait.QUEUE), _claim("c", Wait.QUEUE)
    in_vain = [("bury", KEY, "b", Cause.UNREADABLE), ("pass", 700 * SECOND), ("reap", KEY)]
    queue = [_enter(holder), _enter(parked), _enter(other), ("leave", holder, Outcome.DONE, None)]
    return [*queue, *in_vain * (CALLS_BEFORE_DEAD + 1), ("replay", KEY, "b")]


DONE_TWICE, WRITER_AHEAD, NEVER_ANSWERED = _done_twice(), _writer_ahead(), _never_answered()
DIES_AGAIN_AND_AGAIN, NOBODY_READS_IT = _dies_again_and_again(), _nobody_reads_it()
DIES_AND_IS_NOT_PUT_ASIDE = _dies_and_is_not_put_aside()

#: With every slot free at once, and the first to come the one who stands last: its operation
#: sees its own entry, and may not call it before those in between.
CROWD = [(Mode.EXCLUSIVE, Wait.QUEUE, 0)] * (WINDOW + 8)
ALL_FREE_AT_ONCE: Operations = [("pass", 5 * SECOND)]
