"""The store has a replica, which takes its place at any moment with less than the store had.

The replica begins empty and may catch up whenever it likes, so each state that the key was in may
come back, also the first one: that is a store which has forgotten everything. What is promised then
is in ``docs/explanation/failure-windows.rst`` (19): two may hold the key for a while and the fence
refuses the late one, for tokens go on growing; what has its message in the broker is not lost.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.config import FAILOVER
from tests.model.moves import Next, given_up, spent
from tests.model.world import ACK, HOLDING, Model, Worker, World


def failover_steps(model: Model, world: World) -> Iterator[Next]:
    """Every step that the replica takes."""
    if model.can(world, FAILOVER) and world.replica != world.key:
        yield "the replica catches up", 0, model.settle(world._replace(replica=world.key))
        yield "FAILOVER to the replica", 1, model.settle(spent(_failed_over(model, world)))


def _failed_over(model: Model, world: World) -> World:
    had, has = model.keys.facts[world.key], model.keys.facts[world.replica]

    def told(worker: Worker) -> Worker:
        gone = worker.phase in HOLDING and (f"t{worker.task}", str(worker.nonce)) not in has.held
        return worker._replace(ended=True) if gone else worker

    workers = tuple(sorted(map(told, world.workers)))
    lost = {model.names[task] for task in had.carried - has.carried}
    # The broker gets its acknowledgement, and then nobody has the message.
    others = world._replace(workers=tuple(w for w in workers if w.phase != ACK))
    return given_up(model, world._replace(key=world.replica, workers=workers), lost, others)
