"""What must hold of messages that are kept, revoked, dead-lettered and replayed."""

from __future__ import annotations

from celery_dlock.core import machine, upkeep
from celery_dlock.core.operations import Cancel, DeadLetter, HandBack, Operation, PutOnHold
from celery_dlock.core.state import (
    Claim,
    Drop,
    Ending,
    EnterVerdict,
    KeyState,
    LeaveVerdict,
    Left,
    Outcome,
    Reason,
    Run,
    Step,
    WaitMode,
)
from tests.model.checks import require


def check_dead_lettered(before: KeyState, claim: Claim, step: Step[EnterVerdict]) -> None:
    """Check that whose runs were lost so often is dead-lettered, and nobody else."""
    runs = [h for h in before.holders if h.task == claim.task]
    lost = dict(before.lost).get(claim.task, 0) + any(h.expires <= 0 for h in runs)
    if step.verdict == Drop(Reason.DEAD):
        require(
            lost >= machine.MAX_LOST_RUNS,
            "B nobody is dead-lettered before his runs were lost",
            step,
        )
        require(not any(h.expires > 0 for h in runs), "B nobody is dead while he runs", step)
        ends = any(g.task == claim.task and g.ending is not None for g in before.grants)
        require(not ends, "B who was called to end is not dead-lettered", step)
        listed = [d.task for d in step.state.dead] == [claim.task]
        require(listed, "B who is told to be dead is on the list", step)
        _check_gone(claim.task, step.state)
    else:
        require(not step.state.dead, "B who is on the list is told so", step)
        again = isinstance(step.verdict, Run) and not any(h.nonce == claim.nonce for h in runs)
        few = lost < machine.MAX_LOST_RUNS or claim.wait not in (WaitMode.QUEUE, WaitMode.LOOK)
        require(few or not again, "B what was lost so often does not run again", step)


def check_unused(
    before: KeyState, claim: Claim, outcome: Outcome, step: Step[LeaveVerdict]
) -> None:
    """Check that it is not held against a task, more than once, that it has not run."""
    unheard = outcome is Outcome.REPEAT and claim.has_message and not claim.begun
    if outcome is Outcome.UNUSED or unheard:
        others = (h for h in before.holders if h.task == claim.task and h.nonce != claim.nonce)
        known = dict(before.lost).get(claim.task, 0) + any(h.expires <= 0 for h in others)
        few = dict(step.state.lost).get(claim.task, 0) <= max(1, known)
        require(few, "B what never ran is not counted as lost", step)


def check_unheard(
    before: KeyState, claim: Claim, outcome: Outcome, step: Step[LeaveVerdict]
) -> None:
    """Check that a turn of which nobody heard is kept, and that nobody else gets one by that."""
    if claim.begun or outcome is not Outcome.REPEAT or not claim.has_message:
        return
    mine = [h for h in before.holders if h.task == claim.task and h.nonce == claim.nonce]
    if not mine:
        came = {w.task for w in before.waiting} | {g.task for g in before.grants}
        comes = {w.task for w in step.state.waiting} | {g.task for g in step.state.grants}
        require(claim.task not in comes - came, "Q who had no turn gets none", step)
    elif not mine[0].replaced_by:
        kept = any(g.task == claim.task and g.parked for g in step.state.grants)
        if step.state.hold is not None:  # on which nobody has a turn
            kept = [w.task for w in step.state.waiting[:1] if w.parked] == [claim.task]
        done = claim.task in step.state.done
        require(kept or done, "Q a turn of which nobody heard is kept", step)


def check_upkeep(operation: Operation[bool], before: KeyState, step: Step[bool]) -> None:
    """Check what came of it when people revoked, dead-lettered or replayed a task."""
    task = operation.claim.task
    held = {h.task for h in before.holders if h.expires > 0}
    turn = next((g for g in before.grants if g.task == task and g.parked), None)
    entry = any(w.task == task and w.expires is None for w in before.waiting)
    after = next((g for g in step.state.grants if g.task == task), None)
    match operation:
        case Cancel():
            waits = turn is not None or (entry and task not in held)
            require(step.verdict == waits, "S9 what waits can be revoked, and only that", step)
            ends = after is not None and after.ending is not None
            require(ends or not step.verdict, "S9 what is revoked is called to its end", step)
            earlier = turn.ending if turn is not None else None
            ending = after.ending if after is not None else None
            due = ending is (earlier or Ending.REVOKED)
            require(due or not step.verdict, "S9 what is revoked ends as revoked", step)
        case DeadLetter():
            often = turn is not None and turn.woken >= upkeep.WAKES_BEFORE_DEAD
            require(step.verdict == often, "B a message is dead after so many calls", step)
            require(bool(step.state.dead) == often, "B a dead message is on the list", step)
            if often:
                _check_gone(task, step.state)
        case HandBack():
            require(step.verdict == (turn is not None), "Q who was called is handed back", step)
            if turn is None or after is None:
                return
            require(after.due > 0, "Q what is handed back is called again", step)
            since = after.handed_back if turn.handed_back is None else turn.handed_back
            told = after.handed_back == since is not None or bool(turn.taker)
            require(told, "P since when it is handed back is known", step)
            if turn.taker:
                require(
                    after == turn or turn.due <= 0, "S7 one delivery brings an ending about", step
                )
            else:
                again = after.woken < max(1, turn.woken)
                require(again, "B what is handed back was not called", step)
        case PutOnHold():
            stands = step.state.hold is not None
            require(step.verdict == stands, "S11 the key is on hold if that is said", step)
        case _:
            known = dict(step.state.lost).get(task, 0) or task in step.state.done
            require(not known, "B of what is replayed nothing is remembered", step)
            waits = after is not None or any(w.task == task for w in step.state.waiting)
            require(waits, "B what is replayed waits again", step)


def _check_gone(task: str, state: KeyState) -> None:
    left = {w.task for w in state.waiting} | {g.task for g in state.grants}
    require(task not in left, "B what is dead neither waits nor has a turn", state)


def check_left_again(step: Step[LeaveVerdict], again: Step[LeaveVerdict], *, same: bool) -> None:
    """Check what is answered to who says that it did not hear the first answer."""
    both = (step, again)
    require(same, "R asking again changes nothing", both)
    if isinstance(step.verdict, Left):
        require(again.verdict == step.verdict, "R asked again, it left as the first time", both)
    called = {turn.task for turn in step.wakes if turn.woken == 1}
    told = {turn.task for turn in again.wakes}
    require(called <= told, "R who was called in a lost answer is called again", both)
