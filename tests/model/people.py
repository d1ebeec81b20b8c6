"""What people do: publish in order, revoke what waits, replay what is dead, hold the key."""

from __future__ import annotations

from collections.abc import Iterator

from celery_dlock.core.state import Drop, Park, Reason, WaitMode
from tests.model.checks import require
from tests.model.config import HOLD, REPLY
from tests.model.deliveries import heard
from tests.model.order import arrived, called
from tests.model.world import HOLDS, Delivery, Model, Next, World, after, spent


def people_steps(model: Model, world: World) -> Iterator[Next]:
    """Every step that people take."""
    for task in world.unpublished:
        yield from _publish(model, world, task)
    for task, spec in enumerate(model.config.tasks):
        if spec.revocable and task not in world.revoked:
            op = model.keys.cancel(world.key, f"t{task}")
            if op.verdict:
                revoked = called(model, world, op)._replace(revoked=world.revoked | {task})
                yield from heard(model, after(revoked, op), op, f"t{task} is revoked")
    if model.can(world, HOLD):
        op = model.keys.put_on_hold(world.key)
        held = spent(called(model, world, op))
        yield from heard(model, after(held, op), op, "the key is put on hold")
    for task in sorted(world.dead - {delivery.task for delivery in world.deliveries}):
        yield from _replay(model, world, task)


def _publish(model: Model, world: World, task: int) -> Iterator[Next]:
    claim = model.claim(Delivery(HOLDS, task, 0), WaitMode.ENQUEUE)
    op = model.keys.enter(world.key, claim, model.next_token(world))
    kept = isinstance(op.verdict, Park) or op.verdict == Drop(Reason.WAITING)
    gone = op.verdict == Drop(Reason.DONE)
    require(kept or gone, "Q who publishes in order leaves the message with the store", op)
    if not model.faulty(world):
        world = arrived(model, world, task, op)
    rest = tuple(other for other in world.unpublished if other != task)
    label = f"t{task} takes its place: {type(op.verdict).__name__}"
    yield from heard(model, after(world._replace(unpublished=rest), op), op, label)
    if model.can(world, REPLY):
        yield f"{label}, reply lost", 1, spent(after(world, op))


def _replay(model: Model, world: World, task: int) -> Iterator[Next]:
    spec, state = model.config.tasks[task], model.keys.states[world.key]
    ended = {task} - {model.names[done] for done in state.done}  # a copy has run meanwhile
    op = model.keys.replay(world.key, f"t{task}", spec.mode, spec.limit)
    replayed = called(model, world, op)._replace(
        dead=world.dead - {task}, revoked=world.revoked - {task}, told=world.told - ended
    )
    yield from heard(model, after(replayed, op), op, f"t{task} is replayed")
