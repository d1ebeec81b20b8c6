"""The worlds of messages that are kept, published in order, reserved, revoked, dead, replayed."""

from __future__ import annotations

from celery_dlock.core.state import Mode, WaitMode
from tests.model.config import Config, Task

QUEUE, PLACE = Task(), Task(WaitMode.PLACE)
QUEUE_2 = Task(limit=2)
KEEP, KEEP_2, KEEP_READ = (
    Task(keep=True),
    Task(keep=True, limit=2),
    Task(keep=True, mode=Mode.SHARED),
)
KEEP_RETRY, KEEP_LATE = Task(keep=True, retries_as=2), Task(keep=True, gives_up=True)
ORDERED, ORDERED_KEEP = Task(ordered=True), Task(ordered=True, keep=True)
ORDERED_ONE_WAITS = Task(ordered=True, max_waiting=1, replaces=True)
RESERVES, RESERVES_2 = Task(retries_as=2, reserves=True), Task(limit=2, retries_as=1, reserves=True)
RESERVES_AT_ONCE = Task(retries_as=1, reserves=True)
RESERVES_READ = Task(mode=Mode.SHARED, retries_as=1, reserves=True)
RESERVES_CHANGED = Task(retries_as=1, reserves=True, becomes=RESERVES_READ)
LOOKS, LOOKS_RESERVES = Task(looks=True), Task(looks=True, retries_as=2, reserves=True)
REVOKED, REVOKED_KEEP = Task(revocable=True), Task(revocable=True, keep=True)
REVOKED_LATE = Task(revocable=True, gives_up=True)
REVOKED_ORDERED = Task(revocable=True, ordered=True)
UNKNOWN, UNKNOWN_KEEP = Task(unknown=True), Task(unknown=True, keep=True)
FOREIGN, FOREIGN_LATE = Task(foreign=True), Task(foreign=True, gives_up=True)
UNKNOWN_LATE = Task(unknown=True, revocable=True, gives_up=True)
IN_VAIN, IN_VAIN_LATE = Task(unanswered=True), Task(unanswered=True, gives_up=True)
IN_VAIN_ORDERED = Task(unanswered=True, ordered=True, gives_up=True)
EVERYTHING = Task(ordered=True, keep=True, retries_as=2, reserves=True)

PAIRS = {
    "kept": (KEEP, KEEP),
    "ordered": (ORDERED, ORDERED),
    "reserved for a retry": (RESERVES_AT_ONCE, QUEUE),
}

QUICK = (
    Config("kept; early, 1 fault", (KEEP, KEEP), faults=1, early_ack=True),
    Config("kept; late, 1 fault", (KEEP, KEEP), faults=1),
    Config("ordered; 3 tasks", (ORDERED,) * 3),
    Config("ordered, the newest replaces; 3 tasks", (ORDERED_ONE_WAITS,) * 3),
    Config("ordered; 1 fault", (ORDERED, ORDERED), faults=1),
    Config("ordered, kept; early, 1 fault", (ORDERED_KEEP,) * 2, faults=1, early_ack=True),
    Config("reserved for a retry; 3 tasks", (RESERVES, QUEUE, QUEUE)),
    Config("reserved for a retry that looks; 3 tasks", (LOOKS_RESERVES, LOOKS, LOOKS)),
    Config("reserved for a rescheduled retry; 3 tasks", (RESERVES, QUEUE, PLACE)),
    Config("reserved for a retry; 1 fault", (RESERVES_AT_ONCE, QUEUE), faults=1),
    Config("revoked; 2 tasks", (REVOKED, REVOKED)),
    Config("revoked; 1 fault", (REVOKED, QUEUE), faults=1),
    Config("dead-lettered, 1 lost run; 1 task, 2 faults", (QUEUE,), faults=2, most_lost=1),
    Config("handed back; 1 fault", (QUEUE, FOREIGN), faults=1, most_calls=2),
    Config("dead-lettered, 2 calls; 2 tasks", (UNKNOWN, UNKNOWN), most_calls=2),
    Config("called in vain; 3 tasks", (IN_VAIN, QUEUE, IN_VAIN)),
    Config("called in vain; 1 fault", (IN_VAIN_LATE, QUEUE), faults=1),
    Config("called in vain, ordered; 1 fault", (IN_VAIN_ORDERED, ORDERED), faults=1),
)
SLOW = (
    Config("handed back, and late; 1 fault", (QUEUE, FOREIGN_LATE), faults=1, most_calls=2),
    Config("kept; early, 2 faults", (KEEP, KEEP), faults=2, early_ack=True),
    Config("kept; late, 2 faults", (KEEP, KEEP), faults=2),
    Config("kept; early, 3 tasks, 1 fault", (KEEP,) * 3, faults=1, early_ack=True),
    Config("kept, and all ways; 1 fault", (KEEP, QUEUE, PLACE), faults=1),
    Config("kept; early, two slots, 1 fault", (KEEP_2,) * 2, workers=3, faults=1, early_ack=True),
    Config("kept; early, readers, 1 fault", (KEEP_READ, KEEP_READ, KEEP), faults=1, early_ack=True),
    Config("kept; early, a retry, 1 fault", (KEEP_RETRY, KEEP, KEEP), faults=1, early_ack=True),
    Config("kept; early, one gives up, 1 fault", (KEEP, KEEP_LATE), faults=1, early_ack=True),
    Config(
        "kept from now on; 1 fault", (Task(becomes=KEEP), Task(keep=True, becomes=QUEUE)), faults=1
    ),
    Config("ordered, and all ways; 1 fault", (ORDERED, QUEUE, PLACE), faults=1),
    Config("ordered, kept; early, 2 faults", (ORDERED_KEEP,) * 2, faults=2, early_ack=True),
    Config("ordered; 3 tasks, 1 fault", (ORDERED,) * 3, faults=1),
    Config("reserved; 3 tasks, 1 fault", (RESERVES, QUEUE, QUEUE), faults=1),
    Config("reserved, looks; 3 tasks, 1 fault", (LOOKS_RESERVES, LOOKS, LOOKS), faults=1),
    Config("reserved; two slots, 2 faults", (RESERVES_2, QUEUE_2), workers=3, faults=2),
    Config(
        "reserved, a mode that changes; 2 faults", (RESERVES_CHANGED, Task(becomes=PLACE)), faults=2
    ),
    Config(
        "reserved, kept, ordered; early, 1 fault",
        (EVERYTHING, ORDERED_KEEP, KEEP),
        faults=1,
        early_ack=True,
    ),
    Config("reserved, and revoked; 1 fault", (RESERVES, REVOKED, REVOKED), faults=1),
    Config("revoked; 3 tasks", (REVOKED, REVOKED, QUEUE)),
    Config("revoked, kept; early, 1 fault", (REVOKED_KEEP,) * 2, faults=1, early_ack=True),
    Config("revoked, ordered; 1 fault", (REVOKED_ORDERED, ORDERED), faults=1),
    Config("dead-lettered, 1 lost run; 2 faults", (QUEUE, QUEUE), faults=2, most_lost=1),
    Config(
        "dead-lettered, 2 lost runs; early, kept, 2 faults",
        (KEEP,) * 2,
        faults=2,
        early_ack=True,
        most_lost=2,
    ),
    Config("dead-lettered, 2 lost runs; 1 task, 3 faults", (QUEUE,), faults=3, most_lost=2),
    Config(
        "dead-lettered, 1 lost run; a policy that changes, 2 faults",
        (Task(becomes=PLACE),),
        faults=2,
        most_lost=1,
    ),
    Config("dead-lettered, 2 calls; 3 tasks", (UNKNOWN, UNKNOWN, QUEUE), most_calls=2),
    Config(
        "dead-lettered, 2 calls; early, kept, 1 fault",
        (UNKNOWN_KEEP, KEEP),
        faults=1,
        early_ack=True,
        most_calls=2,
    ),
    Config(
        "dead-lettered, 2 calls; revoked and late, 1 fault",
        (UNKNOWN_LATE, KEEP),
        faults=1,
        most_calls=2,
    ),
)
FULL = (
    Config("handed back, and late; 2 faults", (QUEUE, FOREIGN_LATE), faults=2, most_calls=2),
    Config("kept; early, 3 tasks, 2 faults", (KEEP,) * 3, faults=2, early_ack=True),
    Config("kept; two slots, 3 tasks, 1 fault", (KEEP_2,) * 3, workers=3, faults=1),
    Config(
        "ordered, kept; early, 3 tasks, 2 faults", (ORDERED_KEEP,) * 3, faults=2, early_ack=True
    ),
    Config("reserved; 3 tasks, 2 faults", (RESERVES, QUEUE, QUEUE), faults=2),
    Config(
        "reserved; two slots, 3 tasks, 1 fault",
        (Task(limit=2, retries_as=2, reserves=True), QUEUE_2, QUEUE_2),
        workers=3,
        faults=1,
    ),
    Config("revoked and late; 3 tasks, 1 fault", (REVOKED_LATE, REVOKED, QUEUE), faults=1),
    Config("revoked, kept; early, 2 faults", (REVOKED_KEEP,) * 2, faults=2, early_ack=True),
    Config("dead-lettered, 1 lost run; one kept, 2 faults", (KEEP, QUEUE), faults=2, most_lost=1),
    Config(
        "dead-lettered, 1 lost run; two slots, 2 faults",
        (QUEUE_2, QUEUE_2),
        workers=3,
        faults=2,
        most_lost=1,
    ),
    Config("dead-lettered, 1 lost run; looks, 2 faults", (LOOKS, LOOKS), faults=2, most_lost=1),
    Config(
        "dead-lettered, 1 lost run; revoked and late, 2 faults",
        (REVOKED_LATE, QUEUE),
        faults=2,
        most_lost=1,
    ),
)
