"""The worlds that are explored: small ones at every change, larger ones in the whole run."""

from __future__ import annotations

from celery_dlock.core.state import Mode, WaitMode
from tests.model import configs_of_keeping as keeping
from tests.model.config import FAULTS, HOLD, Config, Task

QUEUE, PLACE, NOT = Task(), Task(WaitMode.PLACE), Task(WaitMode.NOT)
READ, READ_PLACE = Task(mode=Mode.SHARED), Task(WaitMode.PLACE, Mode.SHARED)
QUEUE_2, PLACE_2, NOT_2 = Task(limit=2), Task(WaitMode.PLACE, limit=2), Task(WaitMode.NOT, limit=2)
SHRINK, SHRINK_PLACE = Task(limit=2, becomes=QUEUE), Task(WaitMode.PLACE, limit=2, becomes=PLACE)
UNPARK, PARK = Task(becomes=PLACE), Task(WaitMode.PLACE, becomes=QUEUE)
WRITES, READS = Task(mode=Mode.SHARED, becomes=QUEUE), Task(becomes=READ)
IMPATIENT, ONE_WAITS = Task(gives_up=True), Task(max_waiting=1)
REPLACES = Task(max_waiting=1, replaces=True, gives_up=True)
BY_MAIN = Task(by_main=True)
NEWEST = Task(max_waiting=1, replaces=True, newest=True)
REPLACES_ONLY = Task(max_waiting=1, replaces=True)

WAYS = {
    "queue": (QUEUE, QUEUE),
    "reschedule": (PLACE, PLACE),
    "skip": (NOT, NOT),
    "queue and reschedule": (QUEUE, PLACE),
    "reader and writer": (READ, QUEUE),
}
PAIRS = WAYS | {
    "queue and skip": (QUEUE, NOT),
    "reschedule and skip": (PLACE, NOT),
    "readers": (READ, READ),
    "reader and rescheduled writer": (READ, PLACE),
    "rescheduled reader and writer": (READ_PLACE, PLACE),
    "two slots": (QUEUE_2, QUEUE_2),
    "one gives up": (QUEUE, IMPATIENT),
    "both give up": (IMPATIENT, IMPATIENT),
    "the newest replaces": (REPLACES, REPLACES),
    "the newest replaces who runs": (NEWEST, NEWEST),
    "one may wait": (ONE_WAITS, ONE_WAITS),
    "parked by the main process": (BY_MAIN, BY_MAIN),
    "kept, and parked by the main process": (Task(by_main=True, keep=True),) * 2,
}
TRIPLES = {
    "queue": (QUEUE, QUEUE, QUEUE),
    "reschedule": (PLACE, PLACE, PLACE),
    "queue, reschedule, skip": (QUEUE, PLACE, NOT),
    "a place between": (QUEUE, PLACE, QUEUE),
    "a writer and readers": (READ, READ, QUEUE),
    "a writer and readers, rescheduled": (READ_PLACE, READ_PLACE, PLACE),
    "readers that queue, a rescheduled writer": (READ, READ, PLACE),
    "rescheduled readers, a writer that queues": (READ_PLACE, READ_PLACE, QUEUE),
    "a retry, and another": (Task(retries_as=2), QUEUE, QUEUE),
    "two give up": (QUEUE, IMPATIENT, IMPATIENT),
    "one gives up, a place": (IMPATIENT, PLACE, QUEUE),
    "the newest replaces": (REPLACES, REPLACES, REPLACES),
    "the newest replaces who runs": (NEWEST, NEWEST, NEWEST),
    "one may wait": (ONE_WAITS, ONE_WAITS, ONE_WAITS),
    "parked by the main process": (BY_MAIN, BY_MAIN, BY_MAIN),
    "one may wait, parked by the main process": (Task(max_waiting=1, by_main=True),) * 3,
    "a rescheduled retry, and another": (Task(WaitMode.PLACE, retries_as=2), PLACE, PLACE),
}
CHANGES = {
    "a policy that changes": (UNPARK, UNPARK),
    "policies that swap": (UNPARK, PARK),
    "a reader that becomes a writer": (WRITES, READ),
    "a writer that becomes a reader": (READS, QUEUE),
    "a skip that becomes a queue": (Task(WaitMode.NOT, becomes=QUEUE), PLACE),
}
SLOTS = {
    "two slots": (QUEUE_2, QUEUE_2, QUEUE_2),
    "two slots, rescheduled": (PLACE_2, PLACE_2, PLACE_2),
    "two slots, all three ways": (QUEUE_2, PLACE_2, NOT_2),
    "two limits": (QUEUE_2, QUEUE_2, QUEUE),
}
SHRINKS = {
    "a limit that shrinks": (SHRINK, SHRINK, SHRINK),
    "a limit that shrinks, rescheduled": (SHRINK_PLACE, SHRINK_PLACE, SHRINK_PLACE),
}


def _is_too_much_on_hold(task: Task) -> bool:
    """Whether it asks what the model does not: how long a hold is, what else keeps it waiting, and
    whose turn had come before.
    """
    return task.gives_up or task.newest or task.max_waiting > 0


#: With a fault, each of them takes as long as ten others.
LARGE = ("two give up", "the newest replaces")

QUICK = (
    *(Config(f"{name}; 3 tasks", tasks) for name, tasks in TRIPLES.items()),
    *(Config(f"{name}; 3 tasks, 3 workers", tasks, workers=3) for name, tasks in SLOTS.items()),
    *(Config(f"{name}; 2 tasks, 1 fault", tasks, faults=1) for name, tasks in PAIRS.items()),
    *(
        Config(f"{name}; a cooldown, 2 tasks, 1 fault", PAIRS[name], faults=1, cooldown=True)
        for name in ("queue", "queue and reschedule", "two slots")
    ),
    *(
        Config(f"{name}; on hold once, 3 tasks", tasks, faults=1, kinds=frozenset({HOLD}))
        for name, tasks in (TRIPLES | SLOTS).items()
        if name not in LARGE and not any(map(_is_too_much_on_hold, tasks))
    ),
    *keeping.QUICK,
)
SLOW = (
    *(
        Config(f"{name}; 2 tasks, 2 faults", PAIRS[name], faults=2)
        for name in ("queue", "reschedule", "skip", "queue and reschedule", "reader and writer")
    ),
    *(
        Config(f"{name}; 3 tasks, 1 fault", tasks, faults=1)
        for name, tasks in TRIPLES.items()
        if name not in LARGE
    ),
    Config("the newest replaces, none gives up; 3 tasks, 1 fault", (REPLACES_ONLY,) * 3, faults=1),
    *(Config(f"{name}; 2 tasks, 1 fault", tasks, faults=1) for name, tasks in CHANGES.items()),
    *(Config(f"{name}; 3 tasks, 3 workers", tasks, workers=3) for name, tasks in SHRINKS.items()),
    Config("two slots; 3 tasks, 1 fault", SLOTS["two slots"], faults=1),
    Config("queue; early, 3 tasks, 1 fault", TRIPLES["queue"], faults=1, early_ack=True),
    Config("all ways; early, 1 fault", (QUEUE, PLACE, NOT), faults=1, early_ack=True),
    Config("a cooldown; 3 tasks, 1 fault", (QUEUE, PLACE, NOT), faults=1, cooldown=True),
    Config("a cooldown; 2 queue, 2 faults", (QUEUE, QUEUE), faults=2, cooldown=True),
    *(
        Config(f"{name}; on hold, 2 faults", PAIRS[name], faults=2, kinds=FAULTS | {HOLD})
        for name in ("queue", "queue and reschedule", "reader and writer")
    ),
    *keeping.SLOW,
)
FULL = (
    Config("queue; 3 tasks, 2 faults", TRIPLES["queue"], faults=2),
    *(Config(f"{name}; 3 tasks, 1 fault", TRIPLES[name], faults=1) for name in LARGE),
    *(Config(f"{name}; 2 tasks, 2 faults", tasks, faults=2) for name, tasks in CHANGES.items()),
    *(
        Config(f"{name}; 3 tasks, 3 workers, 1 fault", tasks, workers=3, faults=1)
        for name, tasks in (SLOTS | SHRINKS).items()
    ),
    *keeping.FULL,
)
