"""Small edits of a key's state: each one thing, none of them a rule."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from celery_dlock.core.state import (
    GAVE_WAY,
    WINDOW,
    Cause,
    Claim,
    Cooling,
    Dead,
    Ending,
    Grant,
    Holder,
    KeyState,
    Mode,
    OperatorHold,
    Run,
    Waiting,
    task_id_of,
)

S = TypeVar("S", Holder, Grant, Cooling)

#: For so long (a week) a key is on hold after a failure; nobody can put it on hold for longer.
SHUT_FOR = 604_800_000_000


def free(state: KeyState, mode: Mode) -> bool:
    """Whether one more may hold the key."""
    slots = taken(state)
    if state.hold is not None or any(slot.mode is not mode for slot in slots):
        return False
    if mode is Mode.LIMITED:
        return len(slots) < limit_of(state)
    return mode is Mode.SHARED or not slots


def taken(state: KeyState) -> tuple[Holder | Grant | Cooling, ...]:
    """The slots that nobody else may have now."""
    return (*state.holders, *(g for g in state.grants if g.reserves), *state.cooling)


def free_but_for(state: KeyState, task_id: str, mode: Mode, limit: int) -> bool:
    """Whether the key would be free if the task with that id did not hold it."""
    others = tuple(h for h in state.holders if task_id_of(h.task) != task_id)
    return free(ask_with_limit(replace(state, holders=others), mode, limit), mode)


def limit_of(state: KeyState) -> int:
    """How many may hold the key together; 1 if no claim has told it yet.

    The first claim that asks tells it, and so lets in the others.
    """
    return state.limit or limit_of_slots(state) or 1


def limit_of_slots(state: KeyState) -> int:
    """The limit according to holders, turns and slots that cool down; 0 without any."""
    slots: tuple[Holder | Grant | Cooling, ...] = (*state.holders, *state.grants, *state.cooling)
    return next((slot.limit for slot in slots if slot.mode is Mode.LIMITED), 0)


def ask_with_limit(state: KeyState, mode: Mode, limit: int) -> KeyState:
    """From now on the key has the *limit* of its newest asker, if that has one.

    If more slots are taken than it allows by now, none stays reserved for a task that waits at
    another key: a task that runs there has to end first, and it might wait for one that waits here.
    """
    if mode is not Mode.LIMITED or not limit:
        return state
    if limit == limit_of_slots(state):
        return replace(state, limit=limit)
    grants = state.grants
    if len(taken(state)) > limit:
        grants = tuple(turn for turn in grants if not turn.elsewhere)
    return replace(
        state,
        limit=limit,
        holders=_limited(state.holders, limit),
        grants=_limited(grants, limit),
        cooling=_limited(state.cooling, limit),
    )


def _limited(slots: tuple[S, ...], limit: int) -> tuple[S, ...]:
    return tuple(replace(s, limit=limit) if s.mode is Mode.LIMITED else s for s in slots)


def hold(state: KeyState, claim: Claim, now: int, token: int) -> tuple[KeyState, Run]:
    """Grant the key to *claim*, in the lowest slot that is free."""
    taken = {h.slot for h in state.holders}
    unused = next(n for n in range(len(taken) + 1) if n not in taken)
    slot, token = (0, 0) if claim.mode is Mode.SHARED else (unused, token)
    holder = Holder(
        *(claim.task, claim.nonce, claim.mode, claim.limit, slot, token, now, now + claim.ttl),
        *(claim.name, claim.where, now + claim.cooldown if claim.cooldown else 0),
        replaced_by="" if claim.gives_way else None,
    )
    state = replace(state, holders=(*state.holders, holder))
    if claim.keep:  # its own shadow: what runs again should this run be lost
        state = insert(state, claim, now, state.first - 1, None)
    return state, Run(slot, token)


def cool(state: KeyState, gone: Holder, now: int) -> KeyState:
    """Keep the slot closed that *gone* had, for as long as it is to cool down."""
    if gone.cools <= now:
        return state
    slot = Cooling(gone.nonce, gone.mode, gone.limit, gone.cools)
    return replace(state, cooling=(*state.cooling, slot))


def opens(state: KeyState) -> int | None:
    """When the first slot opens that cools down; ``None`` if none does."""
    return min((slot.until for slot in state.cooling), default=None)


def put_on_hold(
    state: KeyState, name: str, by: str, because: str, until: int, now: int
) -> KeyState:
    """Close the key *until* then, as a person wants; the tasks that wait lose no patience."""
    before = state.hold
    since, ended = (now, now) if before is None else (before.since, before.until)
    hold = OperatorHold(name, by, because, since, until) if until > now else None
    return replace(state, hold=hold, paused=state.paused + until - ended)


def ask_to_give_way(state: KeyState, claim: Claim) -> KeyState:
    """Ask other tasks of its name that run, or are about to, to give way to *claim*."""
    newer, name = claim.task, claim.name
    holders = tuple(
        replace(h, replaced_by=newer)
        if h.replaced_by is not None and h.name == name and is_other(h.task, newer)
        else h
        for h in state.holders
    )
    grants = tuple(
        replace(g, by=newer, by_name=name) if g.ending is None and is_other(g.task, newer) else g
        for g in state.grants
    )
    return replace(state, holders=holders, grants=grants)


def is_other(task: str, newer: str) -> bool:
    """Whether *task* and *newer* are two tasks, and not two attempts of one."""
    return task_id_of(task) != task_id_of(newer)


def give_way(state: KeyState, gone: Holder, now: int) -> KeyState:
    """*gone*, which was replaced, does not run again: it ends, wherever its message is."""
    entry = next((w for w in state.waiting if w.task == gone.task), None)
    by = gone.replaced_by or ""
    if entry is not None:
        return to_grant(state, entry, now, Ending.DROPPED, by)
    task, mode, limit, until = gone.task, gone.mode, gone.limit, now + GAVE_WAY
    turn = Grant(task, mode, limit, False, 0, until, Ending.DROPPED, by=by)
    return replace(state, grants=(*state.grants, turn))


def insert(
    state: KeyState,
    claim: Claim,
    now: int,
    rank: int,
    expires: int | None,
    arrived: int | None = None,
) -> KeyState:
    """Put *claim*'s task into the queue: parked when *expires* is ``None``, else a place.

    It waits since *arrived*, or from *now* on; its patience begins when the key is not on hold.
    """
    had_its_turn = any(h.task == claim.task for h in state.holders)  # its patience is at an end
    impatient = claim.gives_up and expires is None and not had_its_turn
    begins = now if state.hold is None else state.hold.until
    gives_up = begins + claim.gives_up - state.paused if impatient else None
    since = now if arrived is None else arrived
    due = now + claim.delay if claim.enqueues and claim.delay else 0
    whose = (claim.name, claim.entry, claim.keyset)
    entry = (claim.task, claim.mode, rank, since, expires, gives_up, claim.ordered, *whose)
    return _add(state, Waiting(*entry, due))


def to_head(state: KeyState, claim: Claim, turn: Grant, now: int) -> KeyState:
    """Back into the queue as the first, with the patience that was left when it had its *turn*.

    One that was refused because it asks in another mode is not taken for that of others again.
    """
    rank, ordered = state.first - 1, claim.ordered or turn.ordered
    since = now if turn.arrived is None else turn.arrived
    whose = (claim.name, claim.entry if claim.mode is turn.mode else 0, claim.keyset)
    entry = (claim.task, claim.mode, rank, since, None, turn.gives_up, ordered, *whose)
    return _add(state, Waiting(*entry))


def held_as(entry: Waiting, claim: Claim) -> Waiting:
    """*entry* in the mode of *claim*, if it waits by the same entry of the same task's lock."""
    is_alike = claim.entry and (entry.name, entry.entry) == (claim.name, claim.entry)
    return replace(entry, mode=claim.mode) if is_alike and entry.mode is not claim.mode else entry


def all_held_as(state: KeyState, claim: Claim) -> KeyState:
    """The same of all who are loaded and wait."""
    window, others = state.waiting[:WINDOW], state.waiting[WINDOW:]
    return replace(state, waiting=(*(held_as(entry, claim) for entry in window), *others))


def _add(state: KeyState, entry: Waiting) -> KeyState:
    return replace(
        state,
        waiting=tuple(sorted((*state.waiting, entry), key=lambda w: w.rank)),
        parked=state.parked + entry.parked,
        first=min(state.first, entry.rank),
        last=max(state.last, entry.rank),
    )


def to_grant(
    state: KeyState, entry: Waiting, now: int, ending: Ending | None = None, by: str = ""
) -> KeyState:
    """Out of the queue, into the turns: a parked task is woken when it is due, to end at once."""
    at = max(now, entry.due if ending is None else now)
    due, early = (at, at > now) if entry.expires is None else (entry.expires, False)
    limit = limit_of(state) if entry.mode is Mode.LIMITED else 1
    grant = Grant(
        *(entry.task, entry.mode, limit, entry.parked, 0, due, ending),
        gives_up=entry.gives_up,
        ordered=entry.ordered,
        by=by,
        early=early,
        name=entry.name if early else "",
        keyset=entry.keyset if early else "",
        arrived=entry.arrived,
    )
    state = drop_entry(state, entry.task)
    return replace(state, grants=(*state.grants, grant))


def keep_turn(state: KeyState, claim: Claim, now: int) -> KeyState:
    """The turn that *claim* had waits for its task, which comes by itself; its message is here.

    It is woken when its ``patience`` is over; on a key that is on hold it waits first in the queue.
    """
    if not any(w.task == claim.task and w.parked for w in state.waiting):
        state = insert(leave_queue(state, claim.task), claim, now, state.first - 1, None)
    if state.hold is not None:
        return state
    entry = next(w for w in state.waiting if w.task == claim.task)
    state = to_grant(state, entry, now)
    turn = state.grants[-1]
    return replace_grant(state, replace(turn, woken=1, due=now + claim.patience))


def to_its_end(state: KeyState, turn: Grant, now: int) -> KeyState:
    """The message in the queue is woken to the end that *turn* says."""
    entry = next(w for w in state.waiting if w.task == turn.task)
    return to_grant(state, entry, now, turn.ending, turn.by)


def drop_entry(state: KeyState, task: str) -> KeyState:
    """Without *task*'s entry in the queue."""
    entry = next((w for w in state.waiting if w.task == task), None)
    if entry is None:
        return state
    waiting = tuple(w for w in state.waiting if w is not entry)
    return replace(state, waiting=waiting, parked=state.parked - entry.parked)


def forget(state: KeyState, task: str) -> KeyState:
    """Take *task* out of the queue, and its count of lost runs with it."""
    return forget_lost(leave_queue(state, task), task)


def forget_past(state: KeyState, task: str) -> KeyState:
    """Forget that *task* is done, and its count of lost runs."""
    return forget_lost(replace(state, done=state.done - {task}), task)


def forget_lost(state: KeyState, task: str) -> KeyState:
    """Without *task*'s count of lost runs."""
    return replace(state, lost=tuple(entry for entry in state.lost if entry[0] != task))


def leave_queue(state: KeyState, task: str) -> KeyState:
    """Without *task*'s place, its shadow or its parked message, and without its turn."""
    return drop_grant(drop_entry(state, task), task)


def drop_grant(state: KeyState, task: str) -> KeyState:
    """Without *task*'s turn."""
    return replace(state, grants=tuple(g for g in state.grants if g.task != task))


def replace_grant(state: KeyState, grant: Grant) -> KeyState:
    """With *grant* in the place of the turn that its task has."""
    grants = tuple(grant if g.task == grant.task else g for g in state.grants)
    return replace(state, grants=grants)


def reserve(state: KeyState, claim: Claim, left: Holder, now: int) -> KeyState:
    """Keep the slot that *claim* has *left* for its successor; not for one that waits at another
    key if more slots are taken than the limit allows by now.

    The successor comes by itself, unless it has left its message with the store already. One that
    was faster and has a place there is expected for as long as any.
    """
    task = claim.successor
    if task in {*(h.task for h in state.holders), *(g.task for g in state.grants)}:
        return state
    entry = next((w for w in state.waiting if w.task == task), None)
    is_over = left.mode is Mode.LIMITED and len(taken(state)) >= limit_of(state)
    if entry is None and claim.elsewhere and is_over:
        return state
    if entry is None:
        due, elsewhere = now + claim.patience, claim.elsewhere
        turn = Grant(task, left.mode, left.limit, False, 0, due, elsewhere=elsewhere)
        return replace(state, grants=(*state.grants, turn))
    state = to_grant(state, entry, now)
    turn = state.grants[-1]
    due = turn.due if turn.parked else max(turn.due, now + claim.patience)
    return replace_grant(state, replace(turn, due=due))


def turns_of_all_slots(state: KeyState) -> tuple[Grant, ...]:
    """The turns for which the whole key is reserved; none if somebody runs, or it cools down."""
    turns = tuple(slot for slot in taken(state) if isinstance(slot, Grant))
    return () if state.hold or len(turns) < len(taken(state)) else turns


def to_dead_letter(state: KeyState, task: str, mode: Mode, cause: Cause, now: int) -> KeyState:
    """Out of the queue and the turns, onto the list of dead letters."""
    state = leave_queue(state, task)
    return replace(state, dead=(*state.dead, Dead(task, mode, cause, now)))


def put_back(state: KeyState, dead: Dead, now: int) -> KeyState:
    """A dead message waits again for as long as it takes: behind all others, but for one that has
    failed, which is the first again.
    """
    again = Claim("", dead.task, "", 0, mode=dead.mode, limit=0)
    state = leave_queue(state, dead.task)  # another delivery may have a place, or one reserved
    rank = state.first - 1 if dead.cause is Cause.FAILED else state.last + 1
    return insert(state, again, now, rank, None)


def shut(state: KeyState, claim: Claim, now: int) -> KeyState:
    """The task of *claim* has failed for good: its key is on hold, unless a person has put it on
    hold already.
    """
    if state.hold is not None:
        return state
    name, because = f"failed|{claim.task}", f"{task_id_of(claim.task)} failed"
    return put_on_hold(state, name, claim.name, because, now + SHUT_FOR, now)


def runs_lost(state: KeyState, task: str) -> int:
    """How many runs of *task* were lost."""
    return dict(state.lost).get(task, 0)


def messages(state: KeyState) -> tuple[Waiting, ...]:
    """The parked tasks that are loaded and do not run meanwhile, in their order."""
    running = {h.task for h in state.holders}
    return tuple(w for w in state.waiting if w.parked and w.task not in running)


def is_of_call(entry: Waiting | Grant, claim: Claim) -> bool:
    """Whether *entry* is of a call of the same task as *claim*, with the same keys."""
    return (entry.name, entry.keyset) == (claim.name, claim.keyset)


def backlog(state: KeyState) -> int:
    """How many messages wait; the duplicate of a running task does not count."""
    loaded = sum(w.parked for w in state.waiting)
    return state.parked - loaded + len(messages(state))


def count_lost(state: KeyState, task: str) -> KeyState:
    """One more run of *task* was lost."""
    count = runs_lost(state, task) + 1
    return replace(state, lost=(*forget_lost(state, task).lost, (task, count)))


def kept(state: KeyState, task: str) -> bool:
    """Whether *task* is done, or the store has its message."""
    return task in state.done or is_stored(state, task)


def is_stored(state: KeyState, task: str) -> bool:
    """Whether the store has the message of *task*: parked, or woken."""
    entries: tuple[Waiting | Grant, ...] = (*state.waiting, *state.grants)
    return any(entry.task == task and entry.parked for entry in entries)


def is_known(state: KeyState, task: str) -> bool:
    """Whether *task* has come before: it runs, waits, has its turn, or lost a run."""
    came = {h.task for h in state.holders} | {g.task for g in state.grants}
    came |= {w.task for w in state.waiting}
    return task in came or runs_lost(state, task) > 0


def carried(state: KeyState, task: str) -> bool:
    """Whether *task* is done, or somebody has its message: the store, or a duplicate that runs."""
    return kept(state, task) or any(h.task == task for h in state.holders)


def holder_of(state: KeyState, claim: Claim) -> Holder | None:
    """The holder of *claim*, if it holds the key."""
    return next((h for h in state.holders if h.task == claim.task and h.nonce == claim.nonce), None)
