"""What happens without a worker: time passes, and the sweeper sweeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from celery_dlock.core.state import Grant, Holder, KeyState
from tests.model.config import LATE, LEASE, OVERDUE, SWEEPER
from tests.model.key import IN_VAIN, LONG_AGO, NOW
from tests.model.moves import Next, published, spent
from tests.model.order import called
from tests.model.world import HOLDING, Model, World, remove, seat


def other_steps(model: Model, world: World) -> Iterator[Next]:
    """Every step that no worker takes."""
    state = model.keys.states[world.key]
    yield from _leases(model, world, state)
    yield from _calls(model, world, state)
    yield from _places(model, world, state)
    yield from _patience(model, world, state)
    yield from _in_vain(model, world, state)
    yield from _sweep(model, world)


def _leases(model: Model, world: World, state: KeyState) -> Iterator[Next]:
    for holder in state.holders:
        mine = (holder.task, holder.nonce)
        if holder.expires > NOW:
            passed = _of_holder(model, world, mine, {"expires": NOW})
            owner = next(
                (
                    n
                    for n, w in enumerate(world.workers)
                    if (f"t{w.task}", str(w.nonce)) == mine and w.phase in HOLDING and not w.ended
                ),
                None,
            )
            if owner is None:
                yield f"lease of {holder.task} ends", 0, passed
            elif model.can(world, LEASE):
                late = passed.workers[owner]._replace(ended=True)
                after = passed._replace(workers=seat(passed, owner, late))
                yield f"LEASE of {holder.task} ends early", 1, spent(after)
        if holder.cools > NOW:
            passed = _of_holder(model, world, mine, {"cools": NOW})
            yield f"the slot of {holder.task} has cooled down", 0, passed


def _of_holder(model: Model, world: World, owner: tuple[str, str], passed: dict[str, int]) -> World:
    """*world* after some instants of a holder have passed, for the replica as well."""
    name, alter = ("holder", *owner, *passed), partial(_passed, owner, passed)
    key, replica = (model.keys.altered(n, name, alter) for n in (world.key, world.replica))
    return world._replace(key=key, replica=replica)


def _passed(owner: tuple[str, str], passed: dict[str, int], state: KeyState) -> KeyState:
    def of(holder: Holder) -> Holder:
        mine = (holder.task, holder.nonce) == owner
        return replace(holder, **passed) if mine else holder  # type: ignore[arg-type]

    return replace(state, holders=tuple(map(of, state.holders)))


def _calls(model: Model, world: World, state: KeyState) -> Iterator[Next]:
    for at, grant in enumerate(state.grants):
        if grant.due <= NOW:
            continue
        passed = model.keys.altered(world.key, ("due", at), partial(_overdue, at))
        after = world._replace(key=passed)
        if grant.cools:
            yield "a slot has cooled down", 0, after
            continue
        label = f"grant of {grant.task} is overdue"
        kind = OVERDUE if grant.parked else LATE
        busy = model.concluding(world, grant)
        if not busy and not model.under_way(world, model.names[grant.task]):
            yield label, 0, after
        elif model.can(world, kind):
            yield label.upper(), 1, spent(after)


def _overdue(at: int, state: KeyState) -> KeyState:
    return _with_turn(state, at, replace(state.grants[at], due=NOW))


def _places(model: Model, world: World, state: KeyState) -> Iterator[Next]:
    for at, place in enumerate(state.waiting):
        if place.expires is None or place.expires <= NOW:
            continue
        lapsed = model.keys.altered(world.key, ("place", at), partial(_lapsed, at))
        after = world._replace(key=lapsed)
        if not model.under_way(world, model.names[place.task]):
            yield f"place of {place.task} expires", 0, after
        elif model.can(world, LATE):
            yield f"PLACE of {place.task} expires early", 1, spent(after)


def _lapsed(at: int, state: KeyState) -> KeyState:
    place = replace(state.waiting[at], expires=NOW)
    return replace(state, waiting=(*state.waiting[:at], place, *state.waiting[at + 1 :]))


def _patience(model: Model, world: World, state: KeyState) -> Iterator[Next]:
    for at, entry in enumerate(state.waiting):
        if entry.gives_up is not None and entry.gives_up > NOW:
            key = model.keys.altered(world.key, ("gives up", at), partial(_gave_up, at))
            yield f"{entry.task} has waited for too long", 0, world._replace(key=key)
    for at, turn in enumerate(state.grants):
        if turn.gives_up is not None and turn.gives_up > NOW:
            key = model.keys.altered(world.key, ("turn", at), partial(_turn_gave_up, at))
            yield f"{turn.task} has waited for too long", 0, world._replace(key=key)


def _gave_up(at: int, state: KeyState) -> KeyState:
    entry = replace(state.waiting[at], gives_up=NOW)
    return replace(state, waiting=(*state.waiting[:at], entry, *state.waiting[at + 1 :]))


def _turn_gave_up(at: int, state: KeyState) -> KeyState:
    return _with_turn(state, at, replace(state.grants[at], gives_up=NOW))


def _in_vain(model: Model, world: World, state: KeyState) -> Iterator[Next]:
    """Nobody has come to a turn for long, and may come yet."""
    for at, turn in enumerate(state.grants):
        if turn.cools:
            continue
        spec = model.config.tasks[model.names[turn.task]]
        if turn.parked and turn.ending is None and not turn.unanswered:
            if spec.unanswered:
                key = model.keys.altered(world.key, ("in vain", at), partial(_called_in_vain, at))
                yield f"{turn.task} was called in vain for long", 0, world._replace(key=key)
            if turn.handed_back is not None:
                key = model.keys.altered(world.key, ("strange", at), partial(_strange, at))
                yield f"{turn.task} has been handed back for long", 0, world._replace(key=key)


def _called_in_vain(at: int, state: KeyState) -> KeyState:
    return _with_turn(state, at, replace(state.grants[at], woken=IN_VAIN))


def _strange(at: int, state: KeyState) -> KeyState:
    return _with_turn(state, at, replace(state.grants[at], handed_back=LONG_AGO))


def _with_turn(state: KeyState, at: int, turn: Grant) -> KeyState:
    return replace(state, grants=(*state.grants[:at], turn, *state.grants[at + 1 :]))


def _sweep(model: Model, world: World) -> Iterator[Next]:
    for task in sorted(set(world.sweeper)):
        rest = remove(world.sweeper, task)
        yield f"sweeper publishes t{task}", 0, published(world, task)._replace(sweeper=rest)
        if model.config.tasks[task].foreign:
            op = model.keys.hand_back(world.key, f"t{task}")
            wakes = tuple(sorted((*rest, *model.numbers(op.wakes))))
            after = called(model, world, op)._replace(key=op.key, sweeper=wakes)
            yield f"sweeper hands t{task} back", 0, model.settle(after)
    if world.sweeper and model.can(world, SWEEPER):
        yield "SWEEPER dies", 1, spent(world._replace(sweeper=()))
    if not world.sweeper and model.keys.facts[world.key].due:
        op = model.keys.reap(world.key)
        after = called(model, world, op)
        after = after._replace(key=op.key, sweeper=model.numbers(op.wakes))
        yield "reap", 0, model.settle(after)
