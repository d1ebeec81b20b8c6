"""What a delivery asks of its key and tells it, and what can go wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from celery_dlock.core.state import (
    Busy,
    Drop,
    End,
    Ending,
    EnterVerdict,
    NotHeld,
    Outcome,
    Park,
    Reason,
    Replaced,
    Run,
    Same,
    WaitMode,
)
from tests.model.checks import require
from tests.model.config import CHILD, CRASH, DISTRUST, PUBLISHER, REDELIVER, REPLY
from tests.model.key import NOW, Op
from tests.model.order import arrived, called
from tests.model.world import (
    DONE,
    ENDS,
    HOLDS,
    LOST,
    SAYS,
    SAYS_ABANDONED,
    SAYS_DONE,
    SAYS_UNUSED,
    UNHEARD,
    UNUSED,
    Delivery,
    Model,
    Next,
    World,
    after,
    became,
    begun,
    ended,
    published,
    spent,
    taken,
)


def delivery_steps(model: Model, world: World) -> Iterator[Next]:
    """Every step of every delivery, and every delivery that may begin."""
    at_work = sum(d.phase not in SAYS for d in world.deliveries)
    for task in sorted(set(world.broker)):
        if at_work < model.config.workers:
            yield from _ask_in_every_way(model, world, task)
        if model.config.tasks[task].foreign and _is_called(model, world, task):
            op = model.keys.hand_back(world.key, f"t{task}")
            handed_back = called(model, taken(world, task), op)
            yield from heard(model, after(handed_back, op), op, f"t{task} is handed back")
    for delivery in sorted(set(world.deliveries)):
        yield from _step(model, world, delivery)
        if delivery.phase not in SAYS:
            yield from _faults(model, world, delivery)
        elif model.can(world, CRASH):
            yield (
                f"CRASH of who {delivery.phase} of t{delivery.task}",
                1,
                spent(ended(world, delivery)),
            )


def _is_called(model: Model, world: World, task: int) -> bool:
    """Whether *task* has a turn, and time to take it."""
    turns = model.keys.states[world.key].grants
    return any(turn.task == f"t{task}" and turn.due > NOW for turn in turns)


def heard(model: Model, world: World, op: Op, label: str, fault: str = PUBLISHER) -> Iterator[Next]:
    """Whoever has asked publishes the calls in the answer, or is gone before."""
    calls = model.numbers(op.wakes)
    yield label, 0, published(world, *calls)
    if calls and model.can(world, fault):
        yield f"{label}, and nobody is called", 1, spent(world)


# Asking.


def _ask_in_every_way(model: Model, world: World, task: int) -> Iterator[Next]:
    used = {int(n) for t, n in model.keys.facts[world.key].nonces if t == f"t{task}"}
    used |= {d.nonce for d in world.deliveries if d.task == task}
    nonce = next(n for n in range(1, len(used) + 2) if n not in used)
    spec, asking = model.config.tasks[task], Delivery(HOLDS, task, nonce)
    yield from _ask(model, world, asking, None)
    if spec.becomes:
        yield from _ask(model, world, asking._replace(changed=True), None)
    if spec.looks:
        yield from _ask(model, world, asking, WaitMode.LOOK)
    if spec.by_main and not model.stored(world, task):
        yield from _ask(model, world, asking, WaitMode.ENQUEUE)
    if spec.unknown and model.stored(world, task):
        op = model.keys.dead_letter(world.key, f"t{task}")
        thrown_away = called(model, taken(world, task), op)
        yield from heard(model, after(thrown_away, op), op, f"t{task} is unknown here")


def _ask(model: Model, world: World, me: Delivery, wait: WaitMode | None) -> Iterator[Next]:
    op = model.keys.enter(world.key, model.claim(me, wait), model.next_token(world))
    _check_verdict(world, me, op)
    label = f"t{me.task} asks as {me.nonce} ({wait or 'its way'}): {type(op.verdict).__name__}"
    then = _judged(model, world, me, op.verdict, wait)
    stays = then is world
    if not model.faulty(world):
        then = called(model, then, op) if stays and wait else arrived(model, then, me.task, op)
    yield from heard(model, after(then, op), op, label)
    gone = taken(world, me.task)
    early, keeps = model.config.early_ack, model.asks(me).keep
    may_crash = not (early and keeps) or isinstance(op.verdict, Run | Park)
    if model.can(world, CRASH) and may_crash:
        yield f"{label}, CRASH", 1, spent(after(gone if early else world, op))
    if not model.can(world, REPLY):
        return
    if wait is WaitMode.ENQUEUE:
        yield f"{label}, not heard", 1, spent(after(world, op))
        return
    for phase in (UNHEARD, UNUSED) if model.claim(me, wait).has_message else (UNUSED,):
        unheard = begun(gone, me._replace(phase=phase, ended=True))
        yield f"{label}, {phase}", 1, spent(after(unheard, op))
        if not early:
            yield f"t{me.task} is not heard by the store, {phase}", 1, spent(unheard)


def _judged(
    model: Model, world: World, me: Delivery, verdict: EnterVerdict, wait: WaitMode | None
) -> World:
    """*world* after *me* has heard *verdict*; *world* itself where its message stays."""
    gone = taken(world, me.task)
    match verdict:
        case Run():
            return begun(gone, me)
        case Drop(reason=Reason.DEAD):
            return gone._replace(told=gone.told | {me.task})
        case Park() | Drop():
            return gone
        case Same():
            return world
        case Busy():
            final = model.asks(me).wait is WaitMode.NOT or verdict.full
            if not final or wait is not None or _is_own(model, me, verdict):
                return world
            return begun(gone, me._replace(phase=ENDS, ended=True))
        case End():
            return (
                world
                if wait is WaitMode.ENQUEUE
                else begun(gone, me._replace(phase=ENDS, ended=True))
            )
        case _:
            assert_never(verdict)


def _is_own(model: Model, me: Delivery, busy: Busy) -> bool:
    """Whether the attempt before has the key, and is about to leave."""
    holder = busy.holder
    return holder is not None and model.config.tasks[model.names[holder.task]].retries_as == me.task


def _check_verdict(world: World, me: Delivery, op: Op) -> None:
    if me.task in world.revoked - world.dead:  # of what is dead nobody remembers that
        require(not isinstance(op.verdict, Run), "S9 what is revoked does not run", world)
        ending = op.verdict.ending if isinstance(op.verdict, End) else Ending.REVOKED
        require(ending is not Ending.DROPPED, "S9 what is revoked ends as revoked", world)


# Holding and leaving.


def _step(model: Model, world: World, me: Delivery) -> Iterator[Next]:
    match me.phase:
        case "holds":
            yield from _hold(model, world, me)
        case "ends":
            told = world._replace(told=world.told | {me.task})
            yield f"t{me.task} ends", 0, became(told, me, DONE)
        case "done":
            yield from _leave(model, world, me, Outcome.DONE, SAYS_DONE)
        case "lost":
            yield from _leave(model, world, me, Outcome.REPEAT, SAYS_UNUSED)
        case "unheard" | "unused":
            yield from _take_back(model, world, me)
        case _:
            yield from _say(model, world, me)


def _hold(model: Model, world: World, me: Delivery) -> Iterator[Next]:
    verdict = model.keys.renew(world.key, model.claim(me)).verdict
    gone = isinstance(verdict, NotHeld)
    require(gone == me.ended, "R a lease that has ended stays ended, another is renewed", world)
    if gone:
        yield f"t{me.task} sees that its lock is lost", 0, became(world, me, LOST)
    elif model.can(world, DISTRUST):
        yield f"t{me.task} gives its lock up", 1, spent(became(world, me, LOST))
    if isinstance(verdict, Replaced):
        yield f"t{me.task} gives way", 0, became(world, me, ENDS, ended=True)
    ran = became(world._replace(told=world.told | {me.task}), me, DONE)
    successor = model.config.tasks[me.task].retries_as
    if successor is None:
        yield f"t{me.task} runs", 0, ran
        return
    yield f"t{me.task} retries as t{successor}", 0, published(ran, successor)
    if model.can(world, PUBLISHER):
        yield f"t{me.task} cannot be published", 1, spent(became(world, me, UNUSED, ended=True))


def _leave(model: Model, world: World, me: Delivery, outcome: Outcome, says: str) -> Iterator[Next]:
    looked = WaitMode.LOOK if model.asks(me).looks else None
    op = model.keys.leave(world.key, model.claim(me, looked), outcome)
    if not model.faulty(world):
        world = arrived(model, world, me.task, op)
    stored = outcome is Outcome.DONE or model.asks(me).wait is WaitMode.QUEUE
    gone = ended(world, me)
    left = gone if stored else published(gone, me.task)
    label = f"t{me.task} leaves, {outcome}: {type(op.verdict).__name__}"
    yield from heard(model, after(left, op), op, label)
    if model.can(world, REPLY):
        unsaid = gone if outcome is Outcome.DONE else published(gone, me.task)
        unsaid = begun(unsaid, Delivery(says, me.task, me.nonce, changed=me.changed))
        yield f"{label}, and nobody hears it", 1, spent(after(unsaid, op))
        yield f"t{me.task} leaves, {outcome}, is not heard", 1, spent(unsaid)


def _take_back(model: Model, world: World, me: Delivery) -> Iterator[Next]:
    """What was perhaps given goes back, once; and the message is published again.

    If no outage has interrupted it but a time limit, its task ends.
    """
    claim = model.claim(me, WaitMode.LOOK if model.asks(me).looks else None, begun=False)
    outcome = Outcome.UNUSED
    if me.phase == UNHEARD:
        claim, outcome = model.claim(me, begun=False, successor=""), Outcome.REPEAT
    elif not claim.has_message:
        outcome = Outcome.OVER
    op = model.keys.leave(world.key, claim, outcome)
    again = published(ended(world, me), me.task)
    label = f"t{me.task} takes back, {outcome}: {type(op.verdict).__name__}"
    yield from heard(model, after(again, op), op, label)
    yield f"{label}, and nobody hears it", 1, after(again, op)
    yield f"t{me.task} takes back, {outcome}, is not heard", 1, again
    if model.config.tasks[me.task].retries_as is None:  # its retry would have to be called off
        struck = became(after(world, op), me, ENDS)
        yield from heard(model, struck, op, f"{label}, by a time limit")


def _say(model: Model, world: World, me: Delivery) -> Iterator[Next]:
    """The store is told in the end. That a child was killed it is told once, by who knows nothing
    of its next attempt.
    """
    outcome, once = SAYS[me.phase], me.phase == SAYS_ABANDONED
    looked = WaitMode.LOOK if model.asks(me).looks else None
    claim = model.claim(me, looked, successor="") if once else model.claim(me, again=True)
    op = model.keys.leave(world.key, claim, outcome)
    label = f"t{me.task} {me.phase}: {type(op.verdict).__name__}"
    yield from heard(model, after(ended(world, me), op), op, label)
    if model.can(world, REPLY):
        yield (
            f"{label}, and nobody hears it",
            1,
            spent(after(ended(world, me) if once else world, op)),
        )
        if once:
            yield f"t{me.task} {me.phase}, is not heard", 1, spent(ended(world, me))


# What can go wrong.


def _faults(model: Model, world: World, me: Delivery) -> Iterator[Next]:
    gone = ended(world, me)
    again = gone if model.config.early_ack else published(gone, me.task)
    if model.can(world, CRASH):
        yield f"CRASH of t{me.task}", 1, spent(again)
    known = (f"t{me.task}", str(me.nonce)) in model.keys.facts[world.key].nonces
    if model.can(world, CHILD) and known:
        says = Delivery(SAYS_ABANDONED, me.task, me.nonce, changed=me.changed)
        yield f"child of t{me.task} is killed", 1, spent(begun(again, says))
    if model.can(world, REDELIVER) and not model.config.early_ack:
        yield f"t{me.task} is delivered twice", 1, spent(published(world, me.task))
