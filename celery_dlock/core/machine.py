"""The rules of a lock and its wait queue, as pure functions.

A key's whole condition is one small value, the :class:`~celery_dlock.core.state.KeyState`: who
holds it, who waits, whose turn has been called, what is finished. Four things can happen to it::

    enter (state, claim, now) -> Run | Park | Busy | Same | Drop     a task asks for the key
    leave (state, claim, outcome, now) -> Left | Lost                it is through with it
    renew (state, claim, now) -> Renewed | Lost                      it goes on
    reap  (state, now)                                               time has passed

Each returns a ``Step``: the next state, the verdict, and the waiting tasks whose messages must
now be published. A store's only job is to apply one of them atomically, so the functions that
the model checker explores are the functions that ship.

What a store loads is bounded. ``waiting`` is a window: the first ``WINDOW`` live entries and the
asking task's own; ``done`` and ``lost`` speak of the asking task and of the holders only. An
operation therefore costs the same with ten waiting or with a million.

Who waits in which way (``Wait``):

* a *parked* task left its message with the store and is called when its turn comes;
* a *place* belongs to a task that comes back by itself. It keeps the task's rank against parked
  ones, so that a busy queue cannot starve it, and lapses a little after the next attempt is due.
  Among places alone nobody reserves anything: the first to come back takes a free key.
"""

from __future__ import annotations

from dataclasses import replace

from celery_dlock.core.state import (
    WINDOW,
    Busy,
    Claim,
    Drop,
    EnterVerdict,
    Grant,
    Holder,
    KeyState,
    LeaveVerdict,
    Left,
    Lost,
    Mode,
    Outcome,
    Park,
    Reason,
    Renewed,
    RenewVerdict,
    Run,
    Same,
    Step,
    Wait,
    Waiting,
)

#: An unanswered call is repeated after this long; each repetition doubles it, up to the last.
CALL_AGAIN_FIRST = 5_000_000
CALL_AGAIN_LAST = 600_000_000


def enter(state: KeyState, claim: Claim, now: int, token: int = 0) -> Step[EnterVerdict]:
    """*claim* asks for its key; *token* is the fencing token that a grant made now carries."""
    state = _expire(state, now)
    state, verdict = _answer(state, claim, now, token)
    state, wakes = _grant_next(state, now)
    return Step(state, verdict, wakes)


def leave(state: KeyState, claim: Claim, outcome: Outcome, now: int) -> Step[LeaveVerdict]:
    """*claim* gives back its key, if it still has it. Saying it twice changes nothing."""
    mine = _holder(state, claim)
    if mine is not None:
        state = replace(state, holders=tuple(h for h in state.holders if h is not mine))
    state = _conclude(_expire(state, now), claim, outcome, held=mine is not None, now=now)
    carried = _carried(state, claim.task)
    state, wakes = _grant_next(state, now)
    return Step(state, Lost(carried) if mine is None else Left(carried), wakes)


def renew(state: KeyState, claim: Claim, now: int) -> Step[RenewVerdict]:
    """Push the end of *claim*'s lease to *now* + ttl; a lease that has ended stays ended."""
    mine = _holder(state, claim)
    if mine is None or mine.expires <= now:
        return Step(state, Lost())
    return Step(_extend(state, mine, claim, now), Renewed(max(mine.expires, now + claim.ttl)))


def reap(state: KeyState, now: int) -> Step[None]:
    """Time has passed: drop what has ended, call again who did not answer, call who is next."""
    state = _expire(state, now)
    overdue = tuple(g.task for g in state.grants if g.parked and g.due <= now)
    grants = tuple(_call(g, now) if g.task in overdue else g for g in state.grants)
    state, wakes = _grant_next(replace(state, grants=grants), now)
    return Step(state, None, overdue + wakes)


# What happens inside an operation.


def _answer(state: KeyState, claim: Claim, now: int, token: int) -> tuple[KeyState, EnterVerdict]:
    mine = _holder(state, claim)
    if mine is not None and mine.expires > now:  # the reply was lost, and it asks again
        return _extend(state, mine, claim, now), Run(mine.slot, mine.token)
    if claim.task in state.done:
        return _forget(state, claim.task), Drop(Reason.DONE)

    grant = next((g for g in state.grants if g.task == claim.task), None)
    if grant is not None:
        return _take_turn(state, claim, grant, now, token)
    entry = next((w for w in state.waiting if w.task == claim.task), None)
    if entry is not None and entry.parked:
        return state, Drop(Reason.WAITING)
    running = next((h for h in state.holders if h.task == claim.task), None)
    if running is None:
        return _start_or_wait(state, claim, entry, now, token)
    if claim.wait is not Wait.QUEUE:
        return state, Same(running, max(0, running.expires - now))
    # A shadow: this delivery may be the only copy that survives the first one's death.
    return _insert(state, claim, now, state.first - 1, None), Park()


def _take_turn(
    state: KeyState, claim: Claim, grant: Grant, now: int, token: int
) -> tuple[KeyState, EnterVerdict]:
    state = replace(state, grants=tuple(g for g in state.grants if g is not grant))
    if _free(state, claim.mode, claim.limit):
        return _hold(state, claim, now, token)
    # The limit or the mode has changed since the turn was called: back to the head.
    if grant.parked:
        return _insert(state, claim, now, state.first - 1, None), Park()
    state = _insert(state, claim, now, state.first - 1, grant.due)
    return _start_or_wait(state, claim, state.waiting[0], now, token)


def _start_or_wait(
    state: KeyState, claim: Claim, entry: Waiting | None, now: int, token: int
) -> tuple[KeyState, EnterVerdict]:
    started = any(task == claim.task for task, _ in state.lost)
    if _may_start(state, claim, entry, started):
        return _hold(_drop_entry(state, claim.task), claim, now, token)
    if claim.wait is Wait.NOT:
        return state, _busy(state, now)
    rank = entry.rank if entry else (state.first - 1 if started else state.last + 1)
    state = _drop_entry(state, claim.task)
    if claim.wait is Wait.QUEUE:
        return _insert(state, claim, now, rank, None), Park()
    return _insert(state, claim, now, rank, now + claim.patience), _busy(state, now)


def _conclude(state: KeyState, claim: Claim, outcome: Outcome, *, held: bool, now: int) -> KeyState:
    task = claim.task
    match outcome:
        case Outcome.DONE:
            state = _forget(state, task)
            return replace(state, done=state.done | {task}) if claim.done_ttl else state
        case Outcome.OVER:
            return _forget(state, task)
        case Outcome.REPEAT:
            if claim.wait is not Wait.QUEUE or _kept(state, task):
                return state
            # Also while a copy runs: on some brokers this acknowledgement takes its message away.
            state = _leave_queue(state, task)  # another delivery may have a place, or its turn
            return _insert(state, claim, now, state.first - 1, None)
        case Outcome.ABANDONED:
            return _count_lost(state, task) if held else state


def _expire(state: KeyState, now: int) -> KeyState:
    """Drop ended leases, reservations of places that never came back, and lapsed places."""
    for holder in state.holders:
        if holder.frees <= now:
            state = _count_lost(state, holder.task)
    lapsed = [w.task for w in state.waiting if w.lapses is not None and w.lapses <= now]
    for task in lapsed:
        state = _drop_entry(state, task)
    return replace(
        state,
        holders=tuple(h for h in state.holders if h.frees > now),
        grants=tuple(g for g in state.grants if g.parked or g.due > now),
    )


def _grant_next(state: KeyState, now: int) -> tuple[KeyState, tuple[str, ...]]:
    """While a slot is free and a message waits, call the head; every operation ends with this."""
    wakes: list[str] = []
    running = {h.task for h in state.holders}
    for entry in state.waiting[:WINDOW]:  # beyond it there may be others that were not loaded
        if state.parked == 0:
            break  # places alone reserve nothing
        if entry.task in running:
            continue  # a shadow: its turn comes when the running copy is gone
        if not _free(state, entry.mode, entry.limit):
            break
        due = entry.lapses if entry.lapses is not None else now + CALL_AGAIN_FIRST
        grant = Grant(entry.task, entry.mode, entry.limit, entry.parked, 1, due)
        state = _drop_entry(state, entry.task)
        state = replace(state, grants=(*state.grants, grant))
        if grant.parked:
            wakes.append(entry.task)
    return state, tuple(wakes)


def _call(grant: Grant, now: int) -> Grant:
    wait = min(CALL_AGAIN_FIRST << min(grant.calls, 16), CALL_AGAIN_LAST)
    return replace(grant, calls=grant.calls + 1, due=now + wait)


def _free(state: KeyState, mode: Mode, limit: int) -> bool:
    """Whether one more may hold the key. After a change of the limit the smaller one counts."""
    taken: tuple[Holder | Grant, ...] = (*state.holders, *state.grants)
    if any(t.mode is not mode for t in taken):
        return False
    return mode is Mode.SHARED or len(taken) < min((limit, *(t.limit for t in taken)))


def _may_start(state: KeyState, claim: Claim, entry: Waiting | None, started: bool) -> bool:
    if not _free(state, claim.mode, claim.limit):
        return False
    if started:  # its turn had come before its worker died
        return True
    if state.parked:  # a message waits longer; its turn is called as this operation ends
        return False
    rank = entry.rank if entry else state.last + 1
    writer_ahead = any(w.mode is Mode.EXCLUSIVE and w.rank < rank for w in state.waiting)
    return claim.mode is Mode.EXCLUSIVE or not writer_ahead


def _hold(state: KeyState, claim: Claim, now: int, token: int) -> tuple[KeyState, EnterVerdict]:
    taken = {h.slot for h in state.holders}
    unused = next(n for n in range(len(taken) + 1) if n not in taken)
    slot, token = (unused, token) if claim.mode is Mode.EXCLUSIVE else (0, 0)
    ends, frees = now + claim.ttl, now + claim.ttl + claim.lock_delay
    holder = Holder(claim.task, claim.nonce, claim.mode, claim.limit, slot, token, now, ends, frees)
    return replace(state, holders=(*state.holders, holder)), Run(slot, token)


def _extend(state: KeyState, mine: Holder, claim: Claim, now: int) -> KeyState:
    """Whoever is told that it holds the key counts its time from this request, so must the key."""
    expires = max(mine.expires, now + claim.ttl)
    longer = replace(mine, expires=expires, frees=expires + claim.lock_delay)
    return replace(state, holders=tuple(longer if h is mine else h for h in state.holders))


def _insert(state: KeyState, claim: Claim, now: int, rank: int, lapses: int | None) -> KeyState:
    entry = Waiting(claim.task, claim.mode, claim.limit, rank, now, lapses)
    return replace(
        state,
        waiting=tuple(sorted((*state.waiting, entry), key=lambda w: w.rank)),
        parked=state.parked + entry.parked,
        first=min(state.first, rank),
        last=max(state.last, rank),
    )


def _drop_entry(state: KeyState, task: str) -> KeyState:
    entry = next((w for w in state.waiting if w.task == task), None)
    if entry is None:
        return state
    waiting = tuple(w for w in state.waiting if w is not entry)
    return replace(state, waiting=waiting, parked=state.parked - entry.parked)


def _forget(state: KeyState, task: str) -> KeyState:
    """Take *task* out of the queue, and its count of lost runs with it."""
    state = _leave_queue(state, task)
    return replace(state, lost=tuple(entry for entry in state.lost if entry[0] != task))


def _leave_queue(state: KeyState, task: str) -> KeyState:
    """Without *task*'s place, its shadow or its parked message, and without its turn."""
    state = _drop_entry(state, task)
    return replace(state, grants=tuple(g for g in state.grants if g.task != task))


def _count_lost(state: KeyState, task: str) -> KeyState:
    count = dict(state.lost).get(task, 0) + 1
    return replace(state, lost=(*(e for e in state.lost if e[0] != task), (task, count)))


def _kept(state: KeyState, task: str) -> bool:
    """Whether *task* is done, or the store has its message: parked, or called."""
    return (
        task in state.done
        or any(w.task == task and w.parked for w in state.waiting)
        or any(g.task == task and g.parked for g in state.grants)
    )


def _carried(state: KeyState, task: str) -> bool:
    """Whether *task* is done, or somebody has its message: the store, or a copy that runs."""
    return _kept(state, task) or any(h.task == task for h in state.holders)


def _busy(state: KeyState, now: int) -> Busy:
    holder = min(state.holders, key=lambda h: h.expires, default=None)
    return Busy(holder, max(0, holder.expires - now) if holder else 0, state.parked)


def _holder(state: KeyState, claim: Claim) -> Holder | None:
    return next((h for h in state.holders if h.task == claim.task and h.nonce == claim.nonce), None)
