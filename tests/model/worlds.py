"""The worlds that are explored: small ones at every change, larger ones in the whole run."""

from __future__ import annotations

from dataclasses import replace

from celery_dlock.core.state import Mode, WaitMode
from tests.model.explore import Config, Task

QUEUE, PLACE, SKIP = Task(), Task(WaitMode.PLACE), Task(WaitMode.NOT)
READ, TWO, LATE = Task(mode=Mode.SHARED), Task(limit=2), Task(gives_up=True)
KEEP, ORDERED, REVOKED = Task(keep=True), Task(ordered=True), Task(revocable=True)
FULL, REPLACES = Task(max_waiting=1), Task(max_waiting=1, replaces=True, gives_up=True)
NEWEST = Task(max_waiting=1, replaces=True, newest=True)
RETRIES = Task(retries_as=2, reserves=True)
CHAINS = replace(RETRIES, chains=True)
PLACE_READ, PLACE_TWO = replace(PLACE, mode=Mode.SHARED), replace(PLACE, limit=2)
ONE, THREE = Task(limit=1), Task(limit=3)
SHRINKS, NARROWS = replace(TWO, becomes=QUEUE), replace(TWO, becomes=ONE)
WIDENS = replace(ONE, becomes=TWO)
UNPARKS, PARKS = Task(becomes=PLACE), replace(PLACE, becomes=QUEUE)
WRITES, READS = replace(READ, becomes=QUEUE), Task(becomes=READ)
EVERYTHING = replace(RETRIES, ordered=True, keep=True)

PAIRS: dict[str, tuple[Task, ...]] = {
    "two that queue": (QUEUE, QUEUE),
    "two places": (PLACE, PLACE),
    "two that skip": (SKIP, SKIP),
    "a message and a place": (QUEUE, PLACE),
    "a message and a skip": (QUEUE, SKIP),
    "a reader and a writer": (READ, QUEUE),
    "a reader and a place of a writer": (READ, PLACE),
    "two slots": (TWO, TWO),
    "two that give up": (LATE, LATE),
    "one may wait": (FULL, FULL),
    "the newest replaces": (REPLACES, REPLACES),
    "the newest replaces who runs": (NEWEST, NEWEST),
    "kept": (KEEP, KEEP),
    "published in order": (ORDERED, ORDERED),
    "a retry, and another": (Task(retries_as=1, reserves=True), QUEUE),
    "a chain": (replace(CHAINS, retries_as=1), QUEUE),
    "revoked": (REVOKED, QUEUE),
}
TRIPLES: dict[str, tuple[Task, ...]] = {
    "three that queue": (QUEUE,) * 3,
    "three places": (PLACE,) * 3,
    "each in its way": (QUEUE, PLACE, SKIP),
    "a place between two": (QUEUE, PLACE, QUEUE),
    "readers and a writer": (READ, READ, QUEUE),
    "places of readers and a writer": (PLACE_READ, PLACE_READ, PLACE),
    "a retry, and two others": (Task(retries_as=2), QUEUE, QUEUE),
    "a retry with a place": (replace(PLACE, retries_as=2), PLACE, PLACE),
    "a key that is reserved": (RETRIES, QUEUE, PLACE),
    "a chain, and another": (CHAINS, QUEUE, QUEUE),
    "a chain of places, and others": (replace(CHAINS, wait=WaitMode.PLACE), PLACE, SKIP),
    "two of three give up": (QUEUE, LATE, LATE),
    "of three one may wait": (FULL,) * 3,
    "the newest of three replaces": (REPLACES,) * 3,
    "the newest of three replaces who runs": (NEWEST,) * 3,
    "three are published in order": (ORDERED,) * 3,
    "three are revoked": (REVOKED, REVOKED, QUEUE),
}
SLOTS = {
    "three for two slots": (TWO,) * 3,
    "each in its way for two slots": (TWO, PLACE_TWO, replace(SKIP, limit=2)),
    "a limit, and who wants the key alone": (TWO, TWO, QUEUE),
    "three that say another limit each": (ONE, TWO, THREE),
}
CHANGES = {
    "a policy that changes": (UNPARKS, PARKS),
    "a reader that becomes a writer": (WRITES, READ),
    "a writer that becomes a reader": (READS, QUEUE),
    "a skip that becomes a queue": (replace(SKIP, becomes=QUEUE), PLACE),
}

_TWO_WAYS = ("two that queue", "a message and a place")
QUICK = (
    *(Config(f"{name}; a fault", tasks, faults=1) for name, tasks in PAIRS.items()),
    *(Config(name, tasks) for name, tasks in TRIPLES.items()),
    *(Config(name, tasks, workers=3) for name, tasks in SLOTS.items()),
    *(Config(f"{n}; a cooldown, a fault", PAIRS[n], faults=1, cooldown=True) for n in _TWO_WAYS),
    *(Config(f"{n}; on hold", PAIRS[n], faults=1, hold=True) for n in (*_TWO_WAYS, "two slots")),
    Config("kept; early, a fault", (KEEP, KEEP), faults=1, early_ack=True),
)
SLOW = (
    *(Config(f"{n}; two faults", PAIRS[n], faults=2) for n in (*_TWO_WAYS, "two places", "kept")),
    *(Config(f"{name}; a fault", tasks, faults=1) for name, tasks in CHANGES.items()),
    *(
        Config(f"{name}; a fault", tasks, faults=1)
        for name, tasks in TRIPLES.items()
        if name not in ("the newest of three replaces", "two of three give up")
    ),
    Config("a limit that is no limit any more", (SHRINKS,) * 3, workers=3),
    Config("a limit that falls", (NARROWS,) * 3, workers=3),
    Config("a limit that rises", (WIDENS,) * 3, workers=3),
    Config("limits of one, two, three; a fault", (ONE, TWO, THREE), faults=1),
    Config("kept; early, two faults", (KEEP, KEEP), faults=2, early_ack=True),
    Config("kept, ordered and reserved; early, a fault", (EVERYTHING, KEEP, KEEP), 1, 2, True),
)
