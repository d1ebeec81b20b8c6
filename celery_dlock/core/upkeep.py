"""What an operator does to a queue, or a worker with a message that it cannot use.

None of it takes or frees a lock::

    cancel      (state, task, now) -> whether it waited         it ends as revoked
    dead_letter (state, task, cause, now) -> whether it is dead  nobody can read it
    hand_back   (state, task, now) -> whether it was woken      it is for others to publish
    replay      (state, task, now) -> whether a dead one waits  it may run again, and waits if dead
    discard     (state, task, …, now) -> whether one was dead   it is done, without having run
    put_on_hold (state, was, …, now) -> whether it is on that   nobody gets the key for a while
    open_slot   (state, name, now) -> whether it was closed     it has cooled down for long enough
"""

from __future__ import annotations

from dataclasses import replace

from celery_dlock.core import edits
from celery_dlock.core.edits import (
    forget_lost,
    forget_past,
    kept,
    messages,
    put_back,
    replace_grant,
    to_dead_letter,
    to_grant,
)
from celery_dlock.core.state import (
    GAVE_WAY,
    STRANGER_RESERVED,
    Cause,
    Ending,
    Grant,
    KeyState,
    Step,
)
from celery_dlock.core.turns import WAKE_AGAIN_FIRST, expire, settle

#: A message that a worker cannot read, or whose task it does not know, is dead-lettered after so
#: many wakes: until then a worker of another version may be the one that can.
WAKES_BEFORE_DEAD = 4

#: Causes of death by which a task may count as done: it has failed.
HAVE_FAILED = (Cause.RUNS_LOST, Cause.FAILED)

#: A message that was handed back is woken again after so long, by whoever sweeps then.
WAKE_ELSEWHERE = 500_000


def cancel(state: KeyState, task: str, now: int) -> Step[bool]:
    """*task* is revoked: if its message waits or it was woken, it ends when it is woken.

    If the key is only reserved for it, it is free for others, and the task ends when it comes.
    """
    state = expire(state, now)
    entry = next((w for w in messages(state) if w.task == task), None)
    turn = next((g for g in state.grants if g.task == task), None)
    if entry is not None:
        state = to_grant(state, entry, now, Ending.REVOKED)
    elif turn is not None and turn.ending is None:
        due = turn.due if turn.parked else max(turn.due, now + GAVE_WAY)
        due = now if turn.early else due
        state = replace_grant(state, replace(turn, ending=Ending.REVOKED, due=due))
    return _settled(state, now, entry is not None or turn is not None)


def dead_letter(state: KeyState, task: str, cause: Cause, now: int) -> Step[bool]:
    """*task* was woken and its message is of no use here; after enough wakes it is dead."""
    state = expire(state, now)
    turn = _turn(state, task)
    hopeless = turn is not None and turn.woken >= WAKES_BEFORE_DEAD
    if turn is not None and hopeless:
        state = to_dead_letter(state, task, turn.mode, cause, now)
    return _settled(state, now, hopeless)


def hand_back(state: KeyState, task: str, now: int) -> Step[bool]:
    """*task* was woken and its message is for another broker: that was no wake of it."""
    state = expire(state, now)
    turn = _turn(state, task)
    if turn is not None and not turn.taker:  # else an earlier wake is being answered
        since = now if turn.handed_back is None else turn.handed_back
        wait = WAKE_ELSEWHERE if now - since < STRANGER_RESERVED else WAKE_AGAIN_FIRST
        woken = max(0, turn.woken - 1)
        again = replace(turn, woken=woken, handed_back=since, due=now + wait)
        state = replace_grant(state, again)
    return _settled(state, now, turn is not None)


def replay(state: KeyState, task: str, now: int) -> Step[bool]:
    """That *task* is done, or was lost, is forgotten; its dead message waits again.

    But one that is done although no worker could run its message has run by a copy of it, which had
    been on its way: then the dead message is forgotten, and nothing else. One that has failed is
    done by that; of one whose runs were lost, it may mean that the last of these has failed.
    """
    dead = next((d for d in state.dead if d.task == task), None)
    state = expire(replace(state, dead=()), now)
    if dead is not None and dead.cause not in HAVE_FAILED and task in state.done:
        return _settled(state, now, False)
    state = forget_past(state, task)
    if dead is not None and not kept(state, task):
        state = put_back(state, dead, now)
    return _settled(state, now, dead is not None)


def discard(state: KeyState, task: str, done_ttl: int, now: int) -> Step[bool]:
    """The dead letter of *task* is gone, and the task done, unless another message of it waits."""
    dead = next((d for d in state.dead if d.task == task), None)
    state = expire(replace(state, dead=()), now)
    if dead is not None and not kept(state, task):
        state = forget_lost(state, task)
        if done_ttl > 0:
            state = replace(state, done=state.done | {task})
    return _settled(state, now, dead is not None)


def put_on_hold(
    state: KeyState, was: str, name: str, by: str, because: str, lasts: int, now: int
) -> Step[bool]:
    """Put the key on the hold *name*, if the hold it is on now *was* this one (empty: none).

    The new hold *lasts* from *now* on; with 0 the key is no longer on hold.
    """
    state = expire(state, now)
    current = "" if state.hold is None else state.hold.name
    if current == was:
        state = edits.put_on_hold(state, name, by, because, now + lasts, now)
    return _settled(state, now, current in (was, name))  # the latter: nobody heard the answer


def open_slot(state: KeyState, name: str, now: int) -> Step[bool]:
    """The slot that cools down by this *name* opens now."""
    state = expire(state, now)
    cooling = tuple(slot for slot in state.cooling if slot.name != name)
    was_closed = cooling != state.cooling
    return _settled(replace(state, cooling=cooling), now, was_closed)


def _turn(state: KeyState, task: str) -> Grant | None:
    """The turn for which *task* was woken."""
    return next((g for g in state.grants if g.task == task and g.parked), None)


def _settled(state: KeyState, now: int, verdict: bool) -> Step[bool]:
    state, wakes = settle(state, now)
    return Step(state, verdict, wakes)
