"""Who came first, and whether anybody was passed over. Noted until the first fault."""

from __future__ import annotations

from celery_dlock.core.state import Mode, Run, WaitMode
from tests.model.checks import require
from tests.model.key import Op
from tests.model.world import Model, World


def arrived(model: Model, world: World, task: int, op: Op) -> World:
    """*world* after *task* has come to the key by *op*."""
    if task not in world.arrived:
        world = world._replace(arrived=(*world.arrived, task))
    return _turns(model, world, op, task if isinstance(op.verdict, Run) else None)


def called(model: Model, world: World, op: Op) -> World:
    """*world* after *op*, by which nobody came."""
    return world if model.faulty(world) else _turns(model, world, op, None)


def _turns(model: Model, world: World, op: Op, started: int | None) -> World:
    # Nobody waits for the turn any more of those who were called to end.
    ended = (task for task in model.numbers(op.ended) if task not in world.turns)
    world = world._replace(turns=(*world.turns, *ended))
    for turn in model.numbers(op.turns):
        if turn not in world.turns:
            check_order(model, world, turn, called=turn != started)
            world = world._replace(turns=(*world.turns, turn))
    return world


def check_order(model: Model, world: World, turn: int, *, called: bool) -> None:
    """Check that *turn* passes over nobody who came first. Asked while nothing went wrong.

    Nobody passes a parked task. A place is passed by those who find the key free and nobody
    parked (a writer's place not even then by a reader), but not by a task that was *called*. A
    retry for which the key is reserved passes all, and nobody passes it.
    """
    tasks = model.config.tasks
    mine = tasks[turn]
    for before, spec in enumerate(tasks):
        if spec.reserves and before in world.turns and spec.retries_as not in world.turns:
            require(
                turn == spec.retries_as or mine.limit > 1,
                "S6 nobody has the key between a run and its retry",
                world,
            )
            if turn == spec.retries_as:
                return
    for other in world.arrived[: world.arrived.index(turn)]:
        theirs = tasks[other]
        if other in world.turns or theirs.wait is WaitMode.NOT:
            continue
        reader_first = mine.mode is Mode.SHARED and theirs.mode is Mode.EXCLUSIVE
        fair = theirs.wait is WaitMode.PLACE and not called and not reader_first
        require(fair, f"S6 t{turn} had its turn before t{other}, who came first", world)
