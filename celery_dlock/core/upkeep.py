"""What people, and workers for whom a message is not, do to a queue.

None of it takes or frees a lock::

    cancel (state, task, now) -> whether it waited         it is called to its end, as revoked
    bury   (state, task, cause, now) -> whether it is dead  nobody can read it
    hand_back (state, task, now) -> whether it was called   it is for others to publish
    replay (state, task, dead, now) -> whether it was dead  it may run (again), and waits if dead
"""

from __future__ import annotations

from dataclasses import replace

from celery_dlock.core.edits import bury as put_aside
from celery_dlock.core.edits import (
    forget_past,
    kept,
    messages,
    put_back,
    replace_grant,
    to_grant,
)
from celery_dlock.core.state import Cause, Dead, Ending, Grant, KeyState
from celery_dlock.core.step import Step
from celery_dlock.core.turns import expire, settle

#: A message that a worker cannot read, or whose task it does not know, is put aside after so many
#: calls: until then a worker of another version may be the one that can.
CALLS_BEFORE_DEAD = 4

#: A message that was handed back is called again after so long, by whoever sweeps then.
CALL_ELSEWHERE = 500_000


def cancel(state: KeyState, task: str, now: int) -> Step[bool]:
    """*task* is revoked: if its message waits or was called, it ends when it is called."""
    state = expire(state, now)
    entry = next((w for w in messages(state) if w.task == task), None)
    turn = _turn(state, task)
    if entry is not None:
        state = to_grant(state, entry, now, Ending.REVOKED)
    elif turn is not None and turn.ending is None:
        state = replace_grant(state, replace(turn, ending=Ending.REVOKED))
    return _settled(state, now, entry is not None or turn is not None)


def bury(state: KeyState, task: str, cause: Cause, now: int) -> Step[bool]:
    """*task* was called and its message is of no use here; after enough calls it is dead."""
    state = expire(state, now)
    turn = _turn(state, task)
    hopeless = turn is not None and turn.calls >= CALLS_BEFORE_DEAD
    if turn is not None and hopeless:
        state = put_aside(state, task, turn.mode, turn.limit, cause, now)
    return _settled(state, now, hopeless)


def hand_back(state: KeyState, task: str, now: int) -> Step[bool]:
    """*task* was called and its message is for another broker: that was no call of it."""
    state = expire(state, now)
    turn = _turn(state, task)
    if turn is not None and not turn.taker:  # else an earlier call is being answered
        again = replace(turn, calls=max(0, turn.calls - 1), due=now + CALL_ELSEWHERE)
        state = replace_grant(state, again)
    return _settled(state, now, turn is not None)


def replay(state: KeyState, task: str, dead: Dead | None, now: int) -> Step[bool]:
    """That *task* is done, or was lost, is forgotten; its dead message waits again."""
    state = forget_past(expire(state, now), task)
    if dead is not None and not kept(state, task):
        state = put_back(state, dead, now)
    return _settled(state, now, dead is not None)


def _turn(state: KeyState, task: str) -> Grant | None:
    """The turn for which *task*'s message was called."""
    return next((g for g in state.grants if g.task == task and g.parked), None)


def _settled(state: KeyState, now: int, verdict: bool) -> Step[bool]:
    state, wakes = settle(state, now)
    return Step(state, verdict, wakes)
