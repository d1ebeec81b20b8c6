"""Time passes, and whose turn it is: the part of the rules that every operation ends with.

A key with messages never has a free slot and no woken task: an operation that changes its state
settles it, and publishes the messages of the tasks whose turn has come.
"""

from __future__ import annotations

from dataclasses import replace

from celery_dlock.core.edits import (
    backlog,
    cool,
    count_lost,
    drop_entry,
    free,
    give_way,
    held_as,
    limit_of_slots,
    to_grant,
)
from celery_dlock.core.state import WINDOW, Claim, Ending, Grant, KeyState, Waiting

#: An unanswered wake is repeated after this long; each repetition doubles it, up to the last.
WAKE_AGAIN_FIRST = 5_000_000
WAKE_AGAIN_LAST = 600_000_000

#: A key that no worker has looked at for so long after it was due had no worker: any of them sweeps
#: within seconds, and a restart takes less than this.
UNATTENDED = 30_000_000


def expire(state: KeyState, now: int) -> KeyState:
    """Let the time pass since the operation before; every operation begins with this."""
    return drop_expired(note_pause(state, now), now)


def note_pause(state: KeyState, now: int) -> KeyState:
    """Keep the limit, and add to ``paused`` the time in which no worker could have woken a task.

    The time before the key was due is not known to be a pause, so they get a little more.
    """
    state = _drop_expired_places(state, now)  # which other operations no longer see
    if limit := limit_of_slots(state):
        state = replace(state, limit=limit)
    late = now - min(_instants(state), default=now)
    return replace(state, paused=state.paused + late + UNATTENDED) if late > UNATTENDED else state


def drop_expired(state: KeyState, now: int) -> KeyState:
    """Drop expired leases, and reservations of places that never came back."""
    for holder in state.holders:
        if holder.expires <= now:
            gone = give_way(state, holder, now) if holder.replaced_by else None
            state = gone or count_lost(state, holder.task)
            state = cool(state, holder, now)
    holders = tuple(h for h in state.holders if h.expires > now)
    grants = tuple(g for g in state.grants if g.parked or g.due > now)
    cooling = tuple(slot for slot in state.cooling if slot.until > now)
    hold = state.hold if state.hold is not None and state.hold.until > now else None
    left = len(holders) + len(grants) + len(cooling)
    if left == len(state.holders) + len(state.grants) + len(state.cooling) and hold is state.hold:
        return state  # as nearly always
    return replace(state, holders=holders, grants=grants, cooling=cooling, hold=hold)


def _drop_expired_places(state: KeyState, now: int) -> KeyState:
    for task in [w.task for w in state.waiting if w.expires is not None and w.expires <= now]:
        state = drop_entry(state, task)
    return state


def settle(
    state: KeyState, now: int, left: Claim | None = None
) -> tuple[KeyState, tuple[Grant, ...]]:
    """End the tasks that waited too long, wake the next ones and those that are overdue.

    Those whom the claim lets in that has *left* are held as it was, if it speaks for them.
    """
    running = {h.task for h in state.holders}
    window = state.waiting[:WINDOW]  # beyond it there may be others that were not loaded
    late = [w for w in window if _waited_enough(state, w, now)]
    for entry in late:
        state = to_grant(state, entry, now, Ending.TIMED_OUT)
    state, again = _wake_due(state, now)  # some of which reserve nothing from now on
    for entry in window:
        if backlog(state) == 0:
            break  # places alone reserve nothing
        if entry in late or entry.task in running:
            continue  # ended, or a shadow: its turn comes when the running one is gone
        next_one = entry if left is None else held_as(entry, left)
        if not free(state, next_one.mode):
            break
        state = to_grant(state, next_one, now)
    state, first = _wake_due(state, now)
    if state.paused and not _has_messages(state):
        state = replace(state, paused=0)
    if state.limit:
        state = replace(state, limit=0)
    return state, (*again, *first)


def due(state: KeyState) -> int | None:
    """When a reap has something to do, if no operation comes before; ``None`` for never.

    Only a key with messages is due, or one with a turn, a closed slot or a hold that nobody waits
    for and that must not stay for ever. All else expires when an operation looks at the key.
    """
    if _has_messages(state):
        return min(_instants(state), default=0)
    ends = [g.due for g in state.grants if not g.waits]
    return min([*ends, *_openings(state)], default=None)


def _openings(state: KeyState) -> list[int]:
    """When the slots that cool down open, and the key if it is on hold."""
    ends = [slot.until for slot in state.cooling]
    return ends if state.hold is None else [*ends, state.hold.until]


def _has_messages(state: KeyState) -> bool:
    return state.parked > 0 or any(g.parked for g in state.grants)


def _instants(state: KeyState) -> list[int]:
    """The instants at which something is to be done; none for places alone."""
    if not _has_messages(state):
        return []
    instants = [*(g.due for g in state.grants), *_openings(state)]
    if state.parked:
        window = state.waiting[:WINDOW]
        instants += [h.expires for h in state.holders]
        instants += [w.gives_up + state.paused for w in window if w.gives_up is not None]
    return instants


def _waited_enough(state: KeyState, entry: Waiting | Grant, now: int) -> bool:
    return entry.gives_up is not None and entry.gives_up + state.paused <= now


def _wake_due(state: KeyState, now: int) -> tuple[KeyState, tuple[Grant, ...]]:
    woken = {g.task: _wake(state, g, now) for g in state.grants if g.parked and g.due <= now}
    if not woken:
        return state, ()
    state = replace(state, grants=tuple(woken.get(g.task, g) for g in state.grants))
    return state, tuple(woken.values())


def _wake(state: KeyState, grant: Grant, now: int) -> Grant:
    """*grant*, woken once more; to time out if it was woken in vain and has waited too long."""
    ending = grant.ending
    in_vain = grant.woken > 0 or grant.handed_back is not None
    if in_vain and ending is None and _waited_enough(state, grant, now):
        ending = Ending.TIMED_OUT
    again = now + min(WAKE_AGAIN_FIRST << min(grant.woken, 16), WAKE_AGAIN_LAST)
    if grant.gives_up is not None and ending is None:  # that wake is not to come too late
        again = min(again, max(grant.gives_up + state.paused, now + WAKE_AGAIN_FIRST))
    return replace(grant, woken=grant.woken + 1, due=again, ending=ending, taker="", early=False)
