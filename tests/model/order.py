"""Who came first, and whether anybody was passed over. Noted until the first fault."""

from __future__ import annotations

from celery_dlock.core.state import Mode, Run, Wait
from tests.model.checks import require
from tests.model.key import Op
from tests.model.world import Model, World


def arrived(model: Model, world: World, task: int, op: Op) -> World:
    if task not in world.arrived:
        world = world._replace(arrived=(*world.arrived, task))
    world = after_ending(model, world, op)
    for turn in model.numbers(op.turns):
        if turn not in world.turns:
            called = turn != task or not isinstance(op.verdict, Run)
            check_order(model, world, turn, called=called)
            world = world._replace(turns=(*world.turns, turn))
    return world


def after_ending(model: Model, world: World, op: Op) -> World:
    """*world* when nobody waits for the turn of those any more who were called to end."""
    if model.faulty(world):
        return world
    return world._replace(turns=(*world.turns, *model.numbers(op.ended)))


def check_order(model: Model, world: World, turn: int, *, called: bool) -> None:
    """Check that *turn* passes over nobody who came first. Asked while nothing went wrong.

    Nobody passes a parked task. A place is passed by those who find the key free and nobody
    parked (a writer's place not even then by a reader), but not by a task that was *called*.
    """
    mine = model.config.tasks[turn]
    for other in world.arrived[: world.arrived.index(turn)]:
        theirs = model.config.tasks[other]
        if other in world.turns or theirs.wait is Wait.NOT:
            continue
        reader_first = mine.mode is Mode.SHARED and theirs.mode is Mode.EXCLUSIVE
        fair = theirs.wait is Wait.PLACE and not called and not reader_first
        require(fair, f"S6 t{turn} had its turn before t{other}, who came first", world)
