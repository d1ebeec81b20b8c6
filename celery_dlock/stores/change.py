"""What one operation changed in a key, by the parts that a store keeps apart.

A store loads a bounded part of a key, hands it to the machine and writes back the difference. All
of that is the same for every store but the writing, so the difference is computed here, once.
"""

from __future__ import annotations

from dataclasses import dataclass

from celery_dlock.core.state import Dead, KeyState, Step, Waiting

#: A lost run of a task that is never heard of again is forgotten after this long (a day).
REMEMBER_LOST = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Change:
    """The difference between two states of one key.

    ``slots`` is whether holders, turns, closed slots, pauses or the count of parked entries differ;
    ``gone`` and ``came`` are queue entries (one that moved only ``came``); ``parked`` are the tasks
    whose message is that of the operation from now on, ``unparked`` those of which the store may
    forget theirs. ``done`` are to be remembered as finished, ``undone`` no longer. ``lost`` maps a
    task to its new count of lost runs, 0 to forget it. ``dead`` are messages that leave the queue
    for the list of dead letters.
    """

    slots: bool
    gone: tuple[str, ...]
    came: tuple[Waiting, ...]
    parked: frozenset[str]
    unparked: frozenset[str]
    done: frozenset[str]
    undone: frozenset[str]
    lost: dict[str, int]
    dead: tuple[Dead, ...]


def difference(before: KeyState, step: Step[object]) -> Change:
    """What leads from *before* to where *step* does, of which only the loaded part is known."""
    after = step.state
    stays = {entry.task for entry in after.waiting}
    old_entries = set(before.waiting)
    had, has = with_message(before), with_message(after)
    old, new = dict(before.lost), dict(after.lost)
    return Change(
        slots=_slots(before) != _slots(after),
        gone=tuple(entry.task for entry in before.waiting if entry.task not in stays),
        came=tuple(entry for entry in after.waiting if entry not in old_entries),
        parked=has - had | frozenset({step.rewrites} - {""}),
        unparked=had - has,
        done=after.done - before.done,
        undone=before.done - after.done,
        lost={
            task: new.get(task, 0)
            for task in old.keys() | new.keys()
            if old.get(task) != new.get(task)
        },
        dead=after.dead,
    )


def _slots(state: KeyState) -> object:
    closed = state.cooling, state.hold
    return state.holders, state.grants, closed, state.parked, state.paused


def with_message(state: KeyState) -> frozenset[str]:
    """The tasks whose message the store has: parked, or woken."""
    waiting = {entry.task for entry in state.waiting if entry.parked}
    return frozenset(waiting | {grant.task for grant in state.grants if grant.parked})
