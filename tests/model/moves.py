"""What the steps of workers and of all others have in common."""

from __future__ import annotations

from tests.model.world import (
    ACKED,
    ENTER,
    LOOK,
    NO_REPLICA,
    NOBODY,
    Model,
    Worker,
    World,
    add,
    on_the_way,
    seat,
)

#: A label, the faults it costs, and the world after it.
Next = tuple[str, int, World]


def moved(model: Model, world: World, at: int, worker: Worker) -> World:
    """*world* with *worker* at *at*."""
    return model.settle(world._replace(workers=seat(world, at, worker)))


def spent(world: World) -> World:
    """*world* after a fault. From then on nobody asks who came first."""
    replica = world.replica if world.left > 1 else NO_REPLICA
    return world._replace(left=world.left - 1, arrived=(), turns=(), replica=replica)


def published(world: World, task: int) -> World:
    """*world* after the message of *task*, who was called, went to the broker."""
    return world._replace(broker=add(world.broker, task), called=task + 1)


def died(model: Model, world: World, at: int, me: Worker) -> World:
    """*world* without the worker at *at*; what it had not acknowledged is delivered again."""
    shared = me.tag > 0 and sum(w.tag == me.tag for w in world.workers) > 1
    after = moved(model, world, at, NOBODY)
    if model.config.early_ack:
        return lost_unheard(model, after, me)
    if me.tag == ACKED or shared:
        return after
    return after._replace(broker=add(world.broker, me.task, me.tag))


def lost_unheard(model: Model, world: World, me: Worker) -> World:
    """Of what is acknowledged early nobody owes a task of which the store has never heard."""
    if not model.config.early_ack:
        return world
    unheard = me.phase in (LOOK, ENTER) and not model.config.tasks[me.task].ordered
    if not unheard or f"t{me.task}" in model.keys.facts[world.key].carried:
        return world
    return given_up(model, world, {me.task}, world)


def given_up(model: Model, world: World, lost: set[int], others: World) -> World:
    """*world* after the messages of *lost* are gone. Those that *others* have not are not owed."""
    lost = lost - on_the_way(others) - world.told
    retries = (model.config.tasks[task].retries_as for task in lost)
    return world._replace(told=world.told.union(lost, (r for r in retries if r is not None)))
