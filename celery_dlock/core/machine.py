"""The rules of a lock and its wait queue, as pure functions.

A key's whole condition is one small value, the :class:`~celery_dlock.core.state.KeyState`: who
holds it, who waits, whose turn has come, what is finished. Four things can happen to it::

    enter (state, claim, now) -> Run | Park | Busy | Same | End | Drop    a task asks for the key
    leave (state, claim, outcome, now) -> Left | NotHeld                  it releases the key
    renew (state, claim, now) -> Renewed | Replaced | NotHeld             it keeps the key
    reap  (state, now)                                                    time has passed

Each returns a ``Step``: the next state, the verdict, and the waiting tasks whose messages must
now be published. A store's only job is to apply one of them atomically, so the functions that
the model checker explores are the functions that ship.

What a store loads is bounded. ``waiting`` is a window: the first ``WINDOW`` live entries and the
asking task's own; ``done`` and ``lost`` speak of the asking task and of the holders only. An
operation therefore costs the same with ten waiting or with a million.

The ways to wait (``WaitMode``):

* a *parked* task left its message with the store and is woken when its turn comes, and again
  whenever it does not answer; it is also woken, for its result to say so, when it has waited for
  too long or had to make room;
* a *place* belongs to a task that comes back by itself. It keeps the task's rank against parked
  ones, so that a busy queue cannot starve it, and since when it waits; and it expires a little
  after the next attempt is due.
  Among places alone nobody reserves anything: the first to come back takes a free key.
"""

from __future__ import annotations

from dataclasses import replace

from celery_dlock.core.edits import (
    all_held_as,
    ask_to_give_way,
    ask_with_limit,
    backlog,
    carried,
    cool,
    count_lost,
    drop_entry,
    drop_grant,
    forget,
    free,
    give_way,
    hold,
    holder_of,
    insert,
    is_known,
    is_of_call,
    is_stored,
    keep_turn,
    kept,
    leave_queue,
    messages,
    opens,
    replace_grant,
    reserve,
    runs_lost,
    shut,
    to_dead_letter,
    to_grant,
    to_head,
    to_its_end,
)
from celery_dlock.core.state import (
    WINDOW,
    Busy,
    Cause,
    Claim,
    Drop,
    End,
    Ending,
    EnterVerdict,
    Grant,
    Holder,
    KeyState,
    LeaveVerdict,
    Left,
    Mode,
    NotHeld,
    Outcome,
    Park,
    Reason,
    Renewed,
    RenewVerdict,
    Replaced,
    Run,
    Same,
    Step,
    Waiting,
    WaitMode,
)
from celery_dlock.core.turns import drop_expired, expire, note_pause, settle

#: So many runs of a task may be lost before its message becomes a dead letter, or, where no store
#: has it, the task fails: it may be what kills.
MAX_LOST_RUNS = 10


def enter(state: KeyState, claim: Claim, now: int, token: int = 0) -> Step[EnterVerdict]:
    """*claim* asks for its key; *token* is the fencing token that a grant made now carries."""
    before = ask_with_limit(expire(state, now), claim.mode, claim.limit)
    state, verdict = _answer(before, claim, now, token)
    state, wakes = settle(state, now)
    if claim.supersedes and isinstance(verdict, Park) and not is_known(before, claim.task):
        state = ask_to_give_way(state, claim)  # also those whose turn has come just now
    return Step(state, verdict, wakes)


def leave(state: KeyState, claim: Claim, outcome: Outcome, now: int) -> Step[LeaveVerdict]:
    """*claim* releases its key, if it still has it; a second release changes nothing.

    A claim that asks *again* gets the first answer, as far as that can be known. Tasks that were
    woken a moment ago are woken once more: their wakes may have been in the answer that was lost.
    """
    state = note_pause(state, now)
    holder = holder_of(state, claim)
    left = holder is not None or (claim.again and _may_have_left(state, claim, outcome))
    if holder is not None:
        state = replace(state, holders=tuple(h for h in state.holders if h is not holder))
        state = cool(state, holder, now) if claim.begun else state
        state = give_way(state, holder, now) if holder.replaced_by else state
    state = _conclude(drop_expired(state, now), claim, outcome, held=holder is not None, now=now)
    if holder is not None and claim.successor:
        state = reserve(state, claim, holder, now)
    others_carry = carried(state, claim.task)
    state, wakes = settle(state, now, left=None if holder is None else claim)
    if claim.again:
        first_wakes = (g for g in state.grants if g.parked and g.woken == 1 and not g.taker)
        wakes += tuple(g for g in first_wakes if g not in wakes)
    return Step(state, Left(others_carry) if left else NotHeld(others_carry), wakes)


def renew(state: KeyState, claim: Claim, now: int) -> Step[RenewVerdict]:
    """Push the end of *claim*'s lease to *now* + ttl; an expired lease stays expired.

    The lease of a task that gives way to a newer one is not extended either.
    """
    holder = holder_of(state, claim)
    if holder is None or holder.expires <= now:
        return Step(state, NotHeld())
    if holder.replaced_by:
        return Step(state, Replaced(holder.replaced_by))
    return Step(_extend(state, holder, claim, now), Renewed(max(holder.expires, now + claim.ttl)))


def reap(state: KeyState, now: int) -> Step[None]:
    """Time has passed: drop what has expired, wake the next task and those that did not answer."""
    state, wakes = settle(expire(state, now), now)
    return Step(state, None, wakes)


# What happens inside an operation.


def _answer(state: KeyState, claim: Claim, now: int, token: int) -> tuple[KeyState, EnterVerdict]:
    holder = holder_of(state, claim)
    if holder is not None:  # the reply was lost, and it asks again
        return _extend(state, holder, claim, now), Run(holder.slot, holder.token)
    if claim.task in state.done:
        return forget(state, claim.task), Drop(Reason.DONE)
    grant = next((g for g in state.grants if g.task == claim.task), None)
    entry = next((w for w in state.waiting if w.task == claim.task), None)
    running = next((h for h in state.holders if h.task == claim.task), None)
    ends = grant is not None and grant.ending is not None
    lost_too_often = claim.has_message and runs_lost(state, claim.task) >= MAX_LOST_RUNS
    if lost_too_often and not ends and running is None:
        if claim.wait is WaitMode.LOOK:  # its message, which would be the letter, comes next
            return state, _busy(state, now)
        dead = to_dead_letter(state, claim.task, claim.mode, Cause.RUNS_LOST, now)
        return shut(dead, claim, now) if claim.shuts else dead, Drop(Reason.DEAD)
    asks_twice = grant is not None and grant.parked and claim.enqueues
    if asks_twice or (entry is not None and entry.parked):
        return state, Drop(Reason.WAITING)
    if grant is not None:
        return _take_turn(state, claim, grant, now, token)
    if running is None:
        return _start_or_wait(state, claim, entry, now, token)
    if claim.wait not in (WaitMode.QUEUE, WaitMode.ENQUEUE, WaitMode.HEAD):
        return state, Same(running, running.expires - now)
    # A shadow: this delivery may be the only one that survives the first one's death.
    return insert(state, claim, now, state.first - 1, None), _park(state, running)


def _take_turn(
    state: KeyState, claim: Claim, grant: Grant, now: int, token: int
) -> tuple[KeyState, EnterVerdict]:
    ending = grant.ending
    if ending is None and grant.by and claim.gives_way and claim.name == grant.by_name:
        ending = Ending.DROPPED
    if ending is not None:
        if grant.taker not in ("", claim.nonce):
            return state, Drop(Reason.WAITING)
        taken = replace(grant, ending=ending)
        if grant.parked:  # else nobody would wake another one if this one dies
            taken = replace(taken, taker=claim.nonce, due=now + claim.ttl)
        return replace_grant(state, taken), End(ending, grant.by)
    state = drop_grant(state, claim.task)
    if free(state, claim.mode) and not claim.enqueues:
        if claim.mode is not grant.mode:  # so do others who were parked when it was that
            state = all_held_as(state, claim)
        return hold(state, claim, now, token)
    # The limit or the mode has changed since the task was woken, or it came too late for it: back
    # to the head.
    if grant.parked:
        return to_head(state, claim, grant, now), _park(state)
    if claim.enqueues:  # the slot is reserved for it, and it is to be woken
        return insert(state, claim, now, state.first - 1, None, grant.arrived), _park(state)
    state = insert(state, claim, now, state.first - 1, grant.due, grant.arrived)
    return _start_or_wait(state, claim, state.waiting[0], now, token)


def _start_or_wait(
    state: KeyState, claim: Claim, entry: Waiting | None, now: int, token: int
) -> tuple[KeyState, EnterVerdict]:
    started = runs_lost(state, claim.task) > 0
    if not claim.enqueues and _may_start(state, claim, entry, started):
        return hold(drop_entry(state, claim.task), claim, now, token)
    if claim.wait in (WaitMode.NOT, WaitMode.LOOK):
        return state, _busy(state, now)
    at_head = claim.wait is WaitMode.HEAD
    rank = state.first - 1 if started or at_head else state.last + 1
    rank = entry.rank if entry and not at_head else rank
    arrived = entry.arrived if entry else now
    window = {w.task for w in state.waiting[:WINDOW]}
    state = drop_entry(state, claim.task)
    if claim.wait is WaitMode.PLACE:
        state = insert(state, claim, now, rank, now + claim.patience, arrived)
        return state, _busy(state, now)
    # A task that this operation wakes has made room.
    later, _ = settle(state, now) if claim.max_waiting else (state, ())
    if not (started or at_head) and 0 < claim.max_waiting <= backlog(later):
        seen = [w for w in messages(later) if w.task in window]
        own = [w for w in seen if is_of_call(w, claim)]
        if len(own) + backlog(later) - len(seen) >= claim.max_waiting:  # unseen ones may be, too
            if not (own and claim.drop_oldest):
                return state, replace(_busy(state, now), full=True)
            state = to_grant(state, own[0], now, Ending.DROPPED)
    state = insert(state, claim, now, rank, None, arrived)
    state = _newest_only(state, claim, now) if claim.drop_oldest else state
    return state, _park(state, _first_to_end(state))


def _newest_only(state: KeyState, claim: Claim, now: int) -> KeyState:
    """*claim*, which waits now, takes the place of a retry that is not due yet. If it is a retry
    itself, which asks for the next turn, it makes room for a newer task that waits.
    """
    if claim.wait is WaitMode.HEAD:
        own = [w for w in messages(state) if is_of_call(w, claim)]
        entry = next(w for w in state.waiting if w.task == claim.task)
        return to_grant(state, entry, now, Ending.DROPPED) if len(own) > 1 else state
    grants = tuple(
        replace(turn, ending=Ending.DROPPED, due=now)
        if turn.early and turn.ending is None and is_of_call(turn, claim)
        else turn
        for turn in state.grants
    )
    return replace(state, grants=grants)


def _conclude(state: KeyState, claim: Claim, outcome: Outcome, *, held: bool, now: int) -> KeyState:
    task = claim.task
    # It gave way: then no run of it was lost, for it is not to run again.
    turn = next((g for g in state.grants if g.task == task and g.by and g.ending), None)
    held = held and turn is None
    match outcome:
        case Outcome.DONE | Outcome.FAILED:
            failed = claim.shuts and outcome is Outcome.FAILED
            state = _shut(state, claim, now) if failed else forget(state, task)
            return replace(state, done=state.done | {task}) if claim.done_ttl else state
        case Outcome.OVER:
            # A duplicate that ends takes nothing from the one that runs: its message may wait here.
            runs = not held and any(h.task == task for h in state.holders)
            return state if runs else forget(state, task)
        case Outcome.REPEAT:
            if not claim.has_message:
                return state
            if not claim.begun:
                return _unheard(state, claim, now) if held else state
            state = count_lost(state, task) if held else state  # or it would run again for ever
            if kept(state, task):
                return state
            # Also while a duplicate runs: on some brokers this acknowledgement removes its message.
            state = leave_queue(state, task)  # another delivery may have a place, or its turn
            state = insert(state, claim, now, state.first - 1, None)
            return state if turn is None else to_its_end(state, turn, now)
        case Outcome.ABANDONED:
            return count_lost(state, task) if held else state
        case Outcome.UNUSED:
            return _count_start(state, task) if held else state


def _shut(state: KeyState, claim: Claim, now: int) -> KeyState:
    """It has failed for good: what the store has of it is a dead letter, and the key on hold."""
    task = claim.task
    if is_stored(state, task):
        state = to_dead_letter(state, task, claim.mode, Cause.FAILED, now)
    return shut(forget(state, task), claim, now)


def _unheard(state: KeyState, claim: Claim, now: int) -> KeyState:
    """Nobody heard that *claim* got the key: no other task overtakes its task because of that."""
    state = _count_start(state, claim.task)
    return state if claim.task in state.done else keep_turn(state, claim, now)


def _count_start(state: KeyState, task: str) -> KeyState:
    """Remember that *task* has started. More is not counted: a store whose answers come too late
    for a while must not dead-letter what never ran.
    """
    return state if runs_lost(state, task) else count_lost(state, task)


def _may_have_left(state: KeyState, claim: Claim, outcome: Outcome) -> bool:
    """Whether *claim*, which is not here, may have left before: a task that was done is known."""
    remembered = outcome.is_final and claim.done_ttl > 0
    return not remembered or claim.task in state.done


def _may_start(state: KeyState, claim: Claim, entry: Waiting | None, started: bool) -> bool:
    if not free(state, claim.mode):
        return False
    if started:  # its turn had come before its worker died
        return True
    if backlog(state):  # a message waits longer; its turn comes as this operation ends
        return False
    rank = entry.rank if entry else state.last + 1
    writer_ahead = any(w.mode is not Mode.SHARED and w.rank < rank for w in state.waiting)
    return claim.mode is not Mode.SHARED or not writer_ahead


def _extend(state: KeyState, holder: Holder, claim: Claim, now: int) -> KeyState:
    """The holder counts its lease from this request on, so the key has to do the same."""
    expires = max(holder.expires, now + claim.ttl)
    longer = replace(holder, expires=expires)
    return replace(state, holders=tuple(longer if h is holder else h for h in state.holders))


def _busy(state: KeyState, now: int) -> Busy:
    holder, hold = _first_to_end(state), state.hold
    ends = opens(state) if holder is None else holder.expires
    ends = ends if hold is None else hold.until
    return Busy(holder, max(0, (ends or now) - now), backlog(state), hold=hold)


def _park(state: KeyState, holder: Holder | None = None) -> Park:
    return Park(holder, state.hold)


def _first_to_end(state: KeyState) -> Holder | None:
    return min(state.holders, key=lambda h: h.expires, default=None)
