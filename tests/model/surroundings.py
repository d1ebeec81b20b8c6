"""What happens without a worker: time passes, and the sweeper sweeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from celery_dlock.core.state import Grant, KeyState, Waiting
from tests.model.config import LATE, LEASE, OVERDUE, SWEEPER
from tests.model.deliveries import heard
from tests.model.key import IN_VAIN, LONG_AGO, NOW
from tests.model.order import called
from tests.model.world import DONE, HOLDS, LOST, Model, Next, World, after, became, spent


def other_steps(model: Model, world: World) -> Iterator[Next]:
    """Every step that no worker takes."""
    state = model.keys.states[world.key]
    yield from _holders(model, world, state)
    for at, turn in enumerate(state.grants):
        yield from _turn(model, world, at, turn)
    yield from _openings(model, world, state)
    for at, entry in enumerate(state.waiting):
        yield from _entry(model, world, at, entry)
    if model.keys.facts[world.key].due:
        op = model.keys.reap(world.key)
        swept = after(called(model, world, op), op)
        yield from heard(model, swept, op, "reap", SWEEPER)


def _holders(model: Model, world: World, state: KeyState) -> Iterator[Next]:
    for at, holder in enumerate(state.holders):
        if holder.expires > NOW:
            passed = _of_holder(model, world, at, expires=NOW)
            owner = next(
                (
                    d
                    for d in world.deliveries
                    if (f"t{d.task}", str(d.nonce)) == (holder.task, holder.nonce)
                    and d.phase in (HOLDS, DONE, LOST)
                    and not d.ended
                ),
                None,
            )
            if owner is None:
                yield f"lease of {holder.task} ends", 0, passed
            elif model.can(world, LEASE):
                late = became(passed, owner, owner.phase, ended=True)
                yield f"LEASE of {holder.task} ends early", 1, spent(late)
        if holder.cools > NOW:
            passed = _of_holder(model, world, at, cools=NOW)
            yield f"the slot of {holder.task} has cooled down", 0, passed


def _of_holder(model: Model, world: World, at: int, **passed: int) -> World:
    def alter(state: KeyState) -> KeyState:
        holder = replace(state.holders[at], **passed)  # type: ignore[arg-type]
        return replace(state, holders=(*state.holders[:at], holder, *state.holders[at + 1 :]))

    return world._replace(key=model.keys.altered(world.key, ("holder", at, *passed), alter))


def _turn(model: Model, world: World, at: int, turn: Grant) -> Iterator[Next]:
    if turn.due > NOW:
        overdue = _of_turn(model, world, at, due=NOW)
        if not model.ends(world, turn) and model.names[turn.task] not in world.broker:
            yield f"turn of {turn.task} is overdue", 0, overdue
        elif model.can(world, OVERDUE if turn.parked else LATE):
            yield f"TURN of {turn.task} is overdue", 1, spent(overdue)
    if turn.gives_up is not None and turn.gives_up > NOW:
        yield f"{turn.task} has waited too long", 0, _of_turn(model, world, at, gives_up=NOW)
    if not turn.parked or turn.ending is not None or turn.unanswered:
        return
    if model.config.tasks[model.names[turn.task]].unanswered:
        yield f"{turn.task} was called in vain", 0, _of_turn(model, world, at, woken=IN_VAIN)
    if turn.handed_back is not None:
        long_ago = _of_turn(model, world, at, handed_back=LONG_AGO)
        yield f"{turn.task} has been handed back for long", 0, long_ago


def _of_turn(model: Model, world: World, at: int, **passed: int) -> World:
    def alter(state: KeyState) -> KeyState:
        turn = replace(state.grants[at], **passed)  # type: ignore[arg-type]
        return replace(state, grants=(*state.grants[:at], turn, *state.grants[at + 1 :]))

    return world._replace(key=model.keys.altered(world.key, ("turn", at, *passed), alter))


def _openings(model: Model, world: World, state: KeyState) -> Iterator[Next]:
    for at, slot in enumerate(state.cooling):
        if slot.until > NOW:
            cooled = replace(slot, until=NOW)
            slots = (*state.cooling[:at], cooled, *state.cooling[at + 1 :])
            key = model.keys.altered(world.key, ("slot", at), partial(replace, cooling=slots))
            yield "a slot has cooled down", 0, world._replace(key=key)
    if state.hold is not None and state.hold.until > NOW:
        over = replace(state.hold, until=NOW)
        key = model.keys.altered(world.key, ("hold",), partial(replace, hold=over))
        yield "the hold is over", 0, world._replace(key=key)


def _entry(model: Model, world: World, at: int, entry: Waiting) -> Iterator[Next]:
    if entry.expires is not None and entry.expires > NOW:
        lapsed = _of_entry(model, world, at, expires=NOW)
        if model.names[entry.task] not in world.broker:
            yield f"place of {entry.task} expires", 0, lapsed
        elif model.can(world, LATE):
            yield f"PLACE of {entry.task} expires early", 1, spent(lapsed)
    if entry.gives_up is not None and entry.gives_up > NOW:
        yield f"{entry.task} has waited too long", 0, _of_entry(model, world, at, gives_up=NOW)


def _of_entry(model: Model, world: World, at: int, **passed: Any) -> World:
    def alter(state: KeyState) -> KeyState:
        entry = replace(state.waiting[at], **passed)
        return replace(state, waiting=(*state.waiting[:at], entry, *state.waiting[at + 1 :]))

    return world._replace(key=model.keys.altered(world.key, ("entry", at, *passed), alter))
