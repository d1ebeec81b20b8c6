"""What a worker does, step by step, and what can go wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from celery_dlock.core.state import (
    Claim,
    Mode,
    NotHeld,
    Outcome,
    Replaced,
    WaitMode,
)
from tests.model.checks import Violation, require
from tests.model.config import CHILD, CRASH, DISTRUST, PUBLISHER, REDELIVER, REPLY
from tests.model.entering import enter, look, park
from tests.model.moves import Next, died, moved, published, spent
from tests.model.order import arrived
from tests.model.resource import once, write
from tests.model.world import (
    ACK,
    ACKED,
    AGAIN,
    CALLBACKS,
    EFFECT,
    END_CALLBACKS,
    END_RESULT,
    ENTER,
    IDLE,
    LEAVE_DONE,
    LEAVE_OVER,
    LEAVE_REPEAT,
    LEAVE_UNHEARD,
    LEAVE_UNUSED,
    LOOK,
    NOBODY,
    PARK,
    REQUEUE,
    RESULT,
    RETRY,
    SAID,
    SAY_ABANDONED,
    SAY_DONE,
    SAY_UNUSED,
    SAYING,
    SKIP_CALLBACKS,
    SKIP_RESULT,
    TAG,
    Model,
    Worker,
    World,
    add,
    remove,
    seat,
    task_of,
    without,
)

OUTCOMES = {
    LEAVE_DONE: Outcome.DONE,
    LEAVE_REPEAT: Outcome.REPEAT,
    LEAVE_UNUSED: Outcome.UNUSED,
    LEAVE_UNHEARD: Outcome.REPEAT,
    LEAVE_OVER: Outcome.OVER,
    SAY_DONE: Outcome.DONE,
    SAY_UNUSED: Outcome.UNUSED,
    SAY_ABANDONED: Outcome.ABANDONED,
}

#: What is said in the background where the store has not answered.
LATER = {LEAVE_DONE: SAY_DONE, LEAVE_REPEAT: SAY_UNUSED}

#: What follows what, where a step has nothing to decide.
AFTER = {
    EFFECT: CALLBACKS,
    CALLBACKS: RESULT,
    RESULT: LEAVE_DONE,
    RETRY: LEAVE_DONE,
    LEAVE_DONE: ACK,
    AGAIN: ACK,
    SKIP_CALLBACKS: SKIP_RESULT,
    SKIP_RESULT: ACK,
    END_CALLBACKS: END_RESULT,
    END_RESULT: LEAVE_DONE,
}


def worker_steps(model: Model, world: World) -> Iterator[Next]:
    """Every step of every worker; of two alike only one is asked."""
    before: Worker | None = None
    for at, me in enumerate(world.workers):
        if me == before:
            continue
        before = me
        if me.phase == IDLE:
            yield from _deliver(model, world, at)
            continue
        if me.wakes:
            for task in sorted(set(me.wakes)):
                yield f"publish t{task}", 0, wake_published(world, at, me, task)
                if model.can(world, PUBLISHER):
                    yield f"publish t{task} in vain", 1, spent(_in_vain(world, at, me, task))
        else:
            yield from STEPS[me.phase](model, world, at, me)
        if world.left:
            yield from _faults(model, world, at, me)


def wake_published(world: World, at: int, me: Worker, task: int) -> World:
    """*world* after the worker at *at* has published *task*, one of its wakes."""
    after, world = me._replace(wakes=remove(me.wakes, task)), published(world, task)
    if after.phase == SAID and not after.wakes:
        return without(world, at)
    return world._replace(workers=seat(world, at, after))


def _in_vain(world: World, at: int, me: Worker, task: int) -> World:
    """The broker does not take a wake, which is late then: the sweeper repeats it."""
    return wake_published(world, at, me, task)._replace(broker=world.broker, called=0)


def _deliver(model: Model, world: World, at: int) -> Iterator[Next]:
    facts = model.keys.facts[world.key]
    known = facts.nonces | model.keys.facts[world.replica].nonces
    for message in sorted(set(world.broker)):
        task = task_of(message)
        used = {int(n) for t, n in known if t == f"t{task}"}
        used |= {w.nonce for w in world.workers if w.task == task}
        nonce = next(n for n in range(1, len(used) + 2) if n not in used)
        taken = world._replace(broker=remove(world.broker, message))
        phase = LOOK if model.config.tasks[task].looks else ENTER
        me = Worker(phase, task, nonce, tag=message // TAG)
        yield f"deliver t{task}", 0, taken._replace(workers=seat(world, at, me))
        if phase == LOOK and f"t{task}" in facts.carried:  # woken, or a copy of what was
            woken = seat(world, at, me._replace(phase=ENTER))
            yield f"deliver t{task}", 0, taken._replace(workers=woken)
        if model.config.tasks[task].by_main and f"t{task}" not in facts.carried:  # nor woken
            main = seat(world, at, me._replace(phase=PARK))
            yield f"deliver t{task} to be parked", 0, taken._replace(workers=main)
        if model.config.tasks[task].becomes:
            new = seat(world, at, me._replace(changed=True))
            yield f"deliver t{task} to the new version", 0, taken._replace(workers=new)


def _effect(model: Model, world: World, at: int, me: Worker) -> Iterator[Next]:
    renewed = model.keys.renew(world.key, model.claim(me))
    gone = isinstance(renewed.verdict, NotHeld)
    require(gone == me.ended, "R a lease that has ended stays ended, another is renewed", world)
    if gone:
        lost = me._replace(phase=LEAVE_REPEAT, token=0, slot=0)
        yield f"t{me.task} sees that its lock is lost", 0, moved(model, world, at, lost)
    elif model.can(world, DISTRUST):
        doubts = me._replace(phase=LEAVE_REPEAT, token=0, slot=0)
        yield f"t{me.task} gives its lock up", 1, spent(moved(model, world, at, doubts))
    if isinstance(renewed.verdict, Replaced):
        stops = me._replace(phase=END_CALLBACKS, token=0, slot=0, ended=True)
        yield f"t{me.task} gives way", 0, moved(model, world, at, stops)
    exclusive = model.asks(me).mode is Mode.EXCLUSIVE
    fence = write(world.fence, me.slot, me.token) if exclusive else world.fence
    if fence is None:
        require(me.ended, "S2 the fence refuses nobody who holds the lock", world)
        stale = me._replace(phase=LEAVE_REPEAT, token=0, slot=0)
        yield f"t{me.task} is refused by the fence", 0, moved(model, world, at, stale)
        return
    if exclusive and fence[me.slot] < world.fence[me.slot]:
        raise Violation("S2 writes come in the order of their tokens", world)
    effects = once(world.effects, me.task)
    after = me._replace(phase=AFTER[EFFECT], token=0, slot=0)
    yield (
        f"effect of t{me.task}",
        0,
        moved(model, world._replace(fence=fence, effects=effects), at, after),
    )


def _result(model: Model, world: World, at: int, me: Worker) -> Iterator[Next]:
    yield f"result of t{me.task}", 0, moved(model, world, at, me._replace(phase=AFTER[me.phase]))


def _callbacks(model: Model, world: World, at: int, me: Worker) -> Iterator[Next]:
    told = world._replace(told=world.told | {me.task})
    yield f"callbacks of t{me.task}", 0, moved(model, told, at, me._replace(phase=AFTER[me.phase]))


def _retry(model: Model, world: World, at: int, me: Worker) -> Iterator[Next]:
    successor = model.config.tasks[me.task].retries_as
    assert successor is not None
    sent = world._replace(broker=add(world.broker, successor), told=world.told | {me.task})
    after = me._replace(phase=AFTER[RETRY], token=0, slot=0)
    yield f"t{me.task} retries as t{successor}", 0, moved(model, sent, at, after)
    back = LEAVE_UNUSED if model.claim(me).has_message else LEAVE_OVER
    refused = moved(model, world, at, me._replace(phase=back, token=0, slot=0))
    yield from _refused(model, sent, me, f"t{me.task} retries as t{successor}", refused)


def _leave(model: Model, world: World, at: int, me: Worker) -> Iterator[Next]:
    op = model.keys.leave(world.key, _leaving(model, me), OUTCOMES[me.phase])
    wakes = model.numbers(op.wakes)
    phase = AFTER.get(me.phase) or (ACK if model.asks(me).wait is WaitMode.QUEUE else AGAIN)
    if not model.faulty(world):
        world = arrived(model, world, me.task, op)
    label = f"{me.phase} t{me.task}: {type(op.verdict).__name__}"
    after = Worker(phase, me.task, tag=me.tag, wakes=wakes)
    yield label, 0, moved(model, world._replace(key=op.key), at, after)
    if model.can(world, REPLY):
        after = Worker(ACK if me.phase == LEAVE_DONE else AGAIN, me.task, tag=me.tag)
        later = Worker(LATER[me.phase], me.task, me.nonce, changed=me.changed)
        world = world._replace(workers=(*world.workers, later))
        yield f"{me.phase} t{me.task} is not heard", 1, spent(moved(model, world, at, after))
        world = world._replace(key=op.key)
        yield f"{label}, and nobody hears it", 1, spent(moved(model, world, at, after))


def _say(model: Model, world: World, at: int, me: Worker) -> Iterator[Next]:
    """The store is told in the end. That a child was killed it is told once, by who knows nothing
    of its next attempt.
    """
    again = me.phase != SAY_ABANDONED
    claim = model.claim(me, again=True) if again else _leaving(model, me, successor="")
    op = model.keys.leave(world.key, claim, OUTCOMES[me.phase])
    label = f"leave {OUTCOMES[me.phase]} t{me.task}: {type(op.verdict).__name__}"
    heard, wakes = world._replace(key=op.key), model.numbers(op.wakes)
    said = moved(model, heard, at, Worker(SAID, me.task, wakes=wakes))
    yield label, 0, said if wakes else model.settle(without(heard, at))
    if model.can(world, REPLY):
        stays = spent(model.settle(heard if again else without(heard, at)))
        yield f"{label}, and nobody hears it", 1, stays
        if not again:
            yield f"leave abandoned t{me.task} is not heard", 1, spent(without(world, at))


def _take_back(model: Model, world: World, at: int, me: Worker) -> Iterator[Next]:
    """It says so once. In one and the same outage the store may not hear it, or not be heard.

    Then its message is published again. If it was no outage that interrupted it: a shutdown
    requeues its message, and a time limit ends its task.
    """
    unheard = {"successor": ""} if me.phase == LEAVE_UNHEARD else {}  # it has none yet
    claim = _leaving(model, me, begun=False, **unheard)
    op = model.keys.leave(world.key, claim, OUTCOMES[me.phase])
    after, wakes = world._replace(key=op.key), model.numbers(op.wakes)
    label = f"{me.phase} t{me.task}: {type(op.verdict).__name__}"
    again = Worker(AGAIN, me.task, tag=me.tag)
    yield label, 0, moved(model, after, at, again._replace(wakes=wakes))
    yield f"{label}, and nobody hears it", 1, moved(model, after, at, again)
    yield f"{me.phase} t{me.task} is not heard", 1, moved(model, world, at, again)
    stopped = again._replace(phase=REQUEUE, wakes=wakes)
    yield f"{label}, by a shutdown", 0, moved(model, after, at, stopped)
    if model.config.tasks[me.task].retries_as is None:  # its retry would have to be called off
        struck = me._replace(phase=END_CALLBACKS, wakes=wakes)
        yield f"{label}, by a time limit", 0, moved(model, after, at, struck)


def _leaving(model: Model, me: Worker, **more: Any) -> Claim:
    return model.claim(me, WaitMode.LOOK if model.asks(me).looks else None, **more)


def _again(model: Model, world: World, at: int, me: Worker) -> Iterator[Next]:
    sent = world._replace(broker=add(world.broker, me.task))
    label = f"t{me.task} is published again"
    yield label, 0, moved(model, sent, at, Worker(AFTER[AGAIN], me.task))
    refused = moved(model, world, at, me._replace(phase=REQUEUE))
    yield from _refused(model, sent, me, label, refused)


def _refused(model: Model, sent: World, me: Worker, label: str, refused: World) -> Iterator[Next]:
    """The broker does not say that it has a message: it is published once more, or comes again."""
    if model.can(sent, PUBLISHER):
        yield f"{label}, unconfirmed", 1, spent(sent)
        if not model.config.early_ack:
            yield f"t{me.task} cannot be published", 1, spent(refused)


def _ack(model: Model, world: World, at: int, me: Worker) -> Iterator[Next]:
    others = tuple(
        w._replace(tag=ACKED) if me.tag > 0 and w.tag == me.tag else w for w in world.workers
    )
    yield f"ack t{me.task}", 0, moved(model, world._replace(workers=others), at, NOBODY)


def _requeue(model: Model, world: World, at: int, me: Worker) -> Iterator[Next]:
    yield f"t{me.task} is requeued", 0, died(model, world, at, me)


def _faults(model: Model, world: World, at: int, me: Worker) -> Iterator[Next]:
    if me.phase in SAYING:
        if model.can(world, CRASH):
            yield f"CRASH of t{me.task}", 1, spent(model.settle(without(world, at)))
        return
    if model.can(world, CRASH):
        yield f"CRASH of t{me.task}", 1, spent(died(model, world, at, me))
    childless = (PARK, REQUEUE, LOOK, ENTER) if model.config.early_ack else (PARK, REQUEUE)
    if model.can(world, CHILD) and me.phase not in childless:
        both, known = world, model.keys.facts[world.key].nonces
        if (f"t{me.task}", str(me.nonce)) in known:  # else the store has nothing to give up
            says = Worker(SAY_ABANDONED, me.task, me.nonce, changed=me.changed)
            both = world._replace(workers=(*world.workers, says))
        # What it has said of its end is heard, and Celery 5.7 finds the result if it was stored.
        for goes in (REQUEUE, ACK) if me.phase in (LEAVE_DONE, ACK) else (REQUEUE,):
            gone = Worker(goes, me.task, tag=me.tag)
            yield f"child of t{me.task} is killed", 1, spent(moved(model, both, at, gone))
    if model.can(world, REDELIVER) and not model.config.early_ack and me.tag != ACKED:
        tag = me.tag
        if model.config.shared_ack and not tag:
            used = {w.tag for w in world.workers} | {m // TAG for m in world.broker}
            tag = next(n for n in range(1, len(used) + 2) if n not in used)
        copy = world._replace(
            broker=add(world.broker, me.task, tag),
            workers=seat(world, at, me._replace(tag=tag)),
        )
        yield f"t{me.task} is delivered twice", 1, spent(copy)


STEPS: dict[str, Callable[[Model, World, int, Worker], Iterator[Next]]] = {
    LOOK: look,
    ENTER: enter,
    PARK: park,
    EFFECT: _effect,
    RESULT: _result,
    CALLBACKS: _callbacks,
    RETRY: _retry,
    LEAVE_DONE: _leave,
    LEAVE_REPEAT: _leave,
    LEAVE_UNUSED: _take_back,
    LEAVE_UNHEARD: _take_back,
    LEAVE_OVER: _take_back,
    SAY_DONE: _say,
    SAY_UNUSED: _say,
    SAY_ABANDONED: _say,
    AGAIN: _again,
    REQUEUE: _requeue,
    SKIP_RESULT: _result,
    SKIP_CALLBACKS: _callbacks,
    END_RESULT: _result,
    END_CALLBACKS: _callbacks,
    ACK: _ack,
}
