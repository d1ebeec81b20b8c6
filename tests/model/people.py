"""What people do to a key: publish to it in order, revoke what waits, replay what is dead, hold.

They are as many as it takes: the wakes that the store leaves to one of them to publish are not in
the way of another, and each of them can be lost with whoever was to publish it.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_dlock.core.state import Drop, Park, Reason, WaitMode
from tests.model.checks import require
from tests.model.config import HOLD, PUBLISHER, REPLY
from tests.model.key import Op
from tests.model.moves import Next, published, spent
from tests.model.order import arrived, called
from tests.model.world import Model, Worker, World, remove


def people_steps(model: Model, world: World) -> Iterator[Next]:
    """Every step that people take."""
    for task in sorted(set(world.waking)):
        after = world._replace(waking=remove(world.waking, task))
        yield f"t{task} is published", 0, published(after, task)
        if model.can(world, PUBLISHER):
            yield f"WHO publishes t{task} dies", 1, spent(after)
    for task in world.unpublished:
        yield from _publish(model, world, task)
    for task, spec in enumerate(model.config.tasks):
        if spec.revocable and task not in world.revoked:
            yield from _revoke(model, world, task)
    if model.can(world, HOLD):
        op = model.keys.put_on_hold(world.key)
        yield "the key is put on hold", 1, spent(_waking(model, called(model, world, op), op))
    for task in sorted(world.dead - {worker.task for worker in world.workers}):
        yield from _replay(model, world, task)


def _publish(model: Model, world: World, task: int) -> Iterator[Next]:
    claim = model.claim(Worker(task=task), WaitMode.ENQUEUE)
    op = model.keys.enter(world.key, claim, model.next_token(world))
    kept = isinstance(op.verdict, Park) or op.verdict == Drop(Reason.WAITING)
    gone = op.verdict == Drop(Reason.DONE)
    require(kept or gone, "Q who publishes in order leaves the message with the store", op)
    if not model.faulty(world):
        world = arrived(model, world, task, op)
    rest = tuple(other for other in world.unpublished if other != task)
    label = f"t{task} takes its place: {type(op.verdict).__name__}"
    yield label, 0, _waking(model, world._replace(unpublished=rest), op)
    if model.can(world, REPLY):
        yield f"{label}, reply lost", 1, model.settle(spent(world._replace(key=op.key)))


def _revoke(model: Model, world: World, task: int) -> Iterator[Next]:
    op = model.keys.cancel(world.key, f"t{task}")
    if op.verdict:
        world = called(model, world, op)._replace(revoked=world.revoked | {task})
        yield f"t{task} is revoked", 0, _waking(model, world, op)


def _replay(model: Model, world: World, task: int) -> Iterator[Next]:
    spec = model.config.tasks[task]
    ended = {task} if not world.effects[task] else set[int]()  # else a copy has done it meanwhile
    op = model.keys.replay(world.key, f"t{task}", spec.mode, spec.limit)
    after = called(model, world, op)._replace(
        dead=world.dead - {task},
        revoked=world.revoked - {task},
        told=world.told - ended,
        called=-(task + 1),
    )
    yield f"t{task} is replayed", 0, _waking(model, after, op)


def _waking(model: Model, world: World, op: Op) -> World:
    waking = tuple(sorted((*world.waking, *model.numbers(op.wakes))))
    return model.settle(world._replace(key=op.key, waking=waking))
