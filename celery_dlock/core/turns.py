"""Time passes, and whose turn it is: the part of the rules that every operation ends with.

A key with messages is never left with a free slot and nobody called: whoever changes its state
settles it, and publishes the messages of those whose turn has come.
"""

from __future__ import annotations

from dataclasses import replace

from celery_dlock.core.edits import backlog, count_lost, drop_entry, free, to_grant
from celery_dlock.core.state import WINDOW, Ending, Grant, KeyState, Waiting

#: An unanswered call is repeated after this long; each repetition doubles it, up to the last.
CALL_AGAIN_FIRST = 5_000_000
CALL_AGAIN_LAST = 600_000_000


def expire(state: KeyState, now: int) -> KeyState:
    """Drop ended leases, reservations of places that never came back, and lapsed places."""
    for holder in state.holders:
        if holder.frees <= now:
            state = count_lost(state, holder.task)
    lapsed = [w.task for w in state.waiting if w.lapses is not None and w.lapses <= now]
    for task in lapsed:
        state = drop_entry(state, task)
    return replace(
        state,
        holders=tuple(h for h in state.holders if h.frees > now),
        grants=tuple(g for g in state.grants if g.parked or g.due > now),
    )


def settle(state: KeyState, now: int) -> tuple[KeyState, tuple[Grant, ...]]:
    """End who waited too long, call who is next or overdue."""
    running = {h.task for h in state.holders}
    window = state.waiting[:WINDOW]  # beyond it there may be others that were not loaded
    late = [w for w in window if _waited_enough(w, now)]
    for entry in late:
        state = to_grant(state, entry, now, Ending.TIMED_OUT)
    for entry in window:
        if backlog(state) == 0:
            break  # places alone reserve nothing
        if entry in late or entry.task in running:
            continue  # ended, or a shadow: its turn comes when the running copy is gone
        if not free(state, entry.mode, entry.limit):
            break
        state = to_grant(state, entry, now)
    called = {g.task: _call(g, now) for g in state.grants if g.parked and g.due <= now}
    state = replace(state, grants=tuple(called.get(g.task, g) for g in state.grants))
    return state, tuple(called.values())


def due(state: KeyState) -> int | None:
    """When a reap has something to do, should nobody come before; ``None`` for never.

    Only keys with messages are ever due: all else expires by being looked at.
    """
    if not state.parked and not any(g.parked for g in state.grants):
        return None
    instants = [g.due for g in state.grants]
    if state.parked:
        instants += [h.frees for h in state.holders]
        instants += [w.gives_up for w in state.waiting[:WINDOW] if w.gives_up is not None]
    return min(instants, default=0)


def _waited_enough(entry: Waiting, now: int) -> bool:
    return entry.gives_up is not None and entry.gives_up <= now


def _call(grant: Grant, now: int) -> Grant:
    wait = min(CALL_AGAIN_FIRST << min(grant.calls, 16), CALL_AGAIN_LAST)
    return replace(grant, calls=grant.calls + 1, due=now + wait, taker="")
