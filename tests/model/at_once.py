"""What is done at once when nothing can go wrong any more, instead of at any later moment.

After the last fault a worker still has steps to take of which all others see nothing but that they
were taken: nobody prevents them, they ask nothing of the key, and whatever else could happen before
them can happen after them, and comes to the same. So it is enough to explore the worlds in which
they were taken. Each of them, where no fault can fall between:

* A result and callbacks: they are told, and the worker has its task, and its nonce, before and
  after. Until its acknowledgement it also keeps the task from being replayed.
* A message that is published (a wake, or one more time) or requeued: it is as much under way in the
  hands of who publishes it as it is with the broker, which may deliver it as late as it likes.
* An acknowledgement: the worker is free again. Nobody asks who has a message that is over, and a
  task that is still owed (S8) has to be with somebody else without it, then as now.

Left alone is a message that shares its tag with a copy, because its acknowledgement is one for the
other, too. Where tasks may be replayed, wakes are left alone: a replay forgets the calls before it.
"""

from __future__ import annotations

from tests.model.moves import published
from tests.model.workers import STEPS, wake_published
from tests.model.world import (
    ACK,
    AGAIN,
    CALLBACKS,
    END_CALLBACKS,
    END_RESULT,
    REQUEUE,
    RESULT,
    SKIP_CALLBACKS,
    SKIP_RESULT,
    Model,
    World,
)

#: Here nothing is left to decide, and nothing to ask.
UNSEEN = frozenset(
    {
        *(RESULT, CALLBACKS, SKIP_RESULT, SKIP_CALLBACKS, END_RESULT, END_CALLBACKS),
        *(AGAIN, REQUEUE, ACK),
    }
)


def at_once(model: Model, world: World) -> World:
    """*world* after all that is done unseen in it, with one call a step."""
    config = model.config
    wakes = not (config.most_lost or config.most_calls)
    while not world.left:
        after = _worker(model, world, wakes=wakes and not world.called)
        if after is None and wakes and not world.called:
            after = _others(model, world)
        if after is None:
            break
        world = after
    return world


def _worker(model: Model, world: World, *, wakes: bool) -> World | None:
    for at, me in enumerate(world.workers):
        if me.wakes:
            if wakes:
                return wake_published(world, at, me, me.wakes[0])
        elif me.phase in UNSEEN and me.tag <= 0:
            ((_, _, after),) = STEPS[me.phase](model, world, at, me)
            return after
    return None


def _others(model: Model, world: World) -> World | None:
    if world.waking:
        return published(world, world.waking[0])._replace(waking=world.waking[1:])
    if world.sweeper and not model.config.tasks[world.sweeper[0]].foreign:
        return published(world, world.sweeper[0])._replace(sweeper=world.sweeper[1:])
    return None
