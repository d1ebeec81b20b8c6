"""A delivery asks for its key, and what it does when it is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from celery_dlock.core.state import (
    Busy,
    Drop,
    End,
    Ending,
    EnterVerdict,
    Park,
    Reason,
    Run,
    Same,
    WaitMode,
)
from tests.model.checks import require
from tests.model.config import REPLY
from tests.model.key import Op
from tests.model.moves import Next, lost_unheard, moved, spent
from tests.model.order import arrived, called
from tests.model.world import (
    ACK,
    AGAIN,
    EFFECT,
    END_CALLBACKS,
    ENTER,
    LEAVE_OVER,
    LEAVE_UNHEARD,
    LEAVE_UNUSED,
    NOBODY,
    RETRY,
    SKIP_CALLBACKS,
    Model,
    Worker,
    World,
)


def look(model: Model, world: World, at: int, me: Worker) -> Iterator[Next]:
    """A task that tells that it is going to wait asks first."""
    op = model.keys.enter(world.key, model.claim(me, WaitMode.LOOK), model.next_token(world))
    after = _judged(model, me, op.verdict)
    if isinstance(op.verdict, Same | Busy):
        own = isinstance(op.verdict, Busy) and _is_own(model, me, op.verdict)
        after = after if own else me._replace(phase=ENTER)
        world = called(model, world, op)
    elif not model.faulty(world):
        world = arrived(model, world, me.task, op)
    asks = f"t{me.task} looks as {me.nonce}"
    after = after._replace(wakes=model.numbers(op.wakes))
    yield f"{asks}: {type(op.verdict).__name__}", 0, moved(model, _noted(world, op), at, after)
    yield from _unheard(model, world, at, me, asks, op)


def enter(model: Model, world: World, at: int, me: Worker) -> Iterator[Next]:
    claim = model.claim(me)
    op = model.keys.enter(world.key, claim, model.next_token(world))
    after = _judged(model, me, op.verdict)._replace(wakes=model.numbers(op.wakes))
    _check_verdict(world, me, after, op)
    if not model.faulty(world):
        world = arrived(model, world, me.task, op)
    asks = f"enter t{me.task} as {me.nonce}"
    told = f"{asks}: {type(op.verdict).__name__}"
    yield told, 0, moved(model, _noted(world, op), at, after)
    if model.can(world, REPLY):
        yield f"{told}, reply lost", 1, model.settle(spent(_noted(world, op)))
    yield from _unheard(model, world, at, me, asks, op)
    if model.asks(me).unknown and f"t{me.task}" in model.keys.facts[world.key].carried:
        yield from _of_no_use(model, world, at, me)


def park(model: Model, world: World, at: int, me: Worker) -> Iterator[Next]:
    """The main process asks for the turn of a message; what is not taken, or not heard, goes on."""
    op = model.keys.enter(world.key, model.claim(me, WaitMode.ENQUEUE), model.next_token(world))
    parked = isinstance(op.verdict, Park | Drop)
    after = _judged(model, me, op.verdict) if parked else me._replace(phase=ENTER)
    after = after._replace(wakes=model.numbers(op.wakes))
    if not model.faulty(world):
        world = arrived(model, world, me.task, op) if parked else called(model, world, op)
    told = f"park t{me.task}: {type(op.verdict).__name__}"
    yield told, 0, moved(model, _noted(world, op), at, after)
    if model.can(world, REPLY):
        lost = me._replace(phase=ENTER)
        yield f"{told}, and nobody hears it", 1, spent(moved(model, _noted(world, op), at, lost))
        yield f"park t{me.task} is not heard", 1, spent(moved(model, world, at, lost))


def _unheard(model: Model, world: World, at: int, me: Worker, asks: str, op: Op) -> Iterator[Next]:
    """Nobody hears what the store has said, or the store does not hear what it is asked.

    The manager takes back what it may have been given: not the turn, unless it was interrupted.
    """
    if not model.can(world, REPLY):
        return
    ways = (LEAVE_UNHEARD, LEAVE_UNUSED) if model.claim(me).has_message else (LEAVE_OVER,)
    for back in ways:
        after = me._replace(phase=back, ended=True)
        told = f"{asks}: {type(op.verdict).__name__}, and nobody hears it"
        yield told, 1, spent(moved(model, _noted(world, op), at, after))
        owed = lost_unheard(model, moved(model, world, at, NOBODY), me)
        unasked = moved(model, world._replace(told=owed.told), at, after)
        yield f"{asks} is not heard", 1, spent(unasked)


def _check_verdict(world: World, me: Worker, after: Worker, op: Op) -> None:
    writes = after.phase in (EFFECT, SKIP_CALLBACKS)
    final = isinstance(op.verdict, Run | Busy) or op.verdict == Drop(Reason.DEAD)
    require(not writes or final, "S7 no result by a copy", world)
    if me.task in world.revoked - world.dead:  # of what is dead nobody remembers that
        require(not isinstance(op.verdict, Run), "S9 what is revoked does not run", world)
        ending = op.verdict.ending if isinstance(op.verdict, End) else Ending.REVOKED
        require(ending is not Ending.DROPPED, "S9 what is revoked ends as revoked", world)


def _of_no_use(model: Model, world: World, at: int, me: Worker) -> Iterator[Next]:
    """Celery throws a message away whose task the worker does not know; the store has it."""
    op = model.keys.dead_letter(world.key, f"t{me.task}")
    after = Worker(ACK, me.task, tag=me.tag, wakes=model.numbers(op.wakes))
    world = _noted(called(model, world, op), op)
    yield f"t{me.task} is unknown here", 0, moved(model, world, at, after)


def _noted(world: World, op: Op) -> World:
    """*world* with the key as *op* has left it."""
    if not op.dead:
        return world._replace(key=op.key)
    return world._replace(key=op.key, dead=world.dead.union(op.dead))


def _is_own(model: Model, me: Worker, busy: Busy) -> bool:
    """Whether the attempt before has the key, and is about to leave."""
    holder = busy.holder
    return holder is not None and model.config.tasks[model.names[holder.task]].retries_as == me.task


def _judged(model: Model, me: Worker, verdict: EnterVerdict) -> Worker:
    spec = model.asks(me)
    match verdict:
        case Run():
            phase = EFFECT if spec.retries_as is None else RETRY
            return me._replace(phase=phase, slot=verdict.slot, token=verdict.token)
        case Drop(reason=Reason.DEAD):
            return Worker(SKIP_CALLBACKS, me.task, tag=me.tag)
        case Park() | Drop():
            return Worker(ACK, me.task, tag=me.tag)
        case Same():
            return Worker(AGAIN, me.task, tag=me.tag)
        case Busy():
            final = spec.wait is WaitMode.NOT or verdict.full
            if not final or _is_own(model, me, verdict):
                return Worker(AGAIN, me.task, tag=me.tag)
            return Worker(END_CALLBACKS, me.task, me.nonce, ended=True, tag=me.tag)
        case End():
            return Worker(END_CALLBACKS, me.task, me.nonce, ended=True, tag=me.tag)
        case _:
            assert_never(verdict)
