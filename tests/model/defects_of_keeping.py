"""The machine with one rule spoilt at a time: of what is kept, ordered, reserved, revoked, dead."""

from __future__ import annotations

from celery_dlock.core import edits, upkeep
from celery_dlock.core.state import Wait
from tests.model.config import Config, Task
from tests.model.defects import Defect

Q, K, K2 = Task(), Task(keep=True), Task(keep=True, limit=2)
ORDERED, LOOKS, CHANGES = Task(ordered=True), Task(looks=True), Task(becomes=Task(Wait.PLACE))
REVOKED, UNKNOWN = Task(revocable=True), Task(unknown=True)

KEPT = Config("two kept, early, 1 fault", (K, K), faults=1, early_ack=True)
KEPT_ONE_WAITS = Config("one may wait", (Task(keep=True, max_waiting=1),) * 2)
KEPT_RETRY = Config("a kept retry", (Task(keep=True, retries_as=2), Q, K))
IN_ORDER = Config("ordered", (ORDERED,) * 3)
RESERVED = Config("a retry that is reserved", (Task(retries_as=2, reserves=True), Q, Q))
RESERVED_FAULT = Config("reserved, 1 fault", (Task(retries_as=2, reserves=True), Q, Q), faults=1)
RESERVED_2 = Config(
    "a reserved retry, two slots, 2 faults",
    (Task(limit=2, retries_as=1, reserves=True), Task(limit=2)),
    workers=3,
    faults=2,
)
REVOKE = Config("revoked, 1 fault", (REVOKED, Q), faults=1)
REVOKE_KEPT = Config("kept and revoked", (Task(keep=True, revocable=True),))
LOST = Config("one lost run", (Q,), faults=2, most_lost=1)
LOST_TWICE = Config("two lost runs", (Q,), faults=2, most_lost=2)
LOST_REVOKED = Config("one lost run, revoked", (REVOKED,), faults=2, most_lost=1)
LOST_CHANGED = Config("one lost run, two versions", (CHANGES, Q), faults=2, most_lost=1)
HANDED_BACK = Config("handed back, 1 fault", (Q, Task(foreign=True)), faults=1, most_calls=2)
CALLED = Config("two calls", (UNKNOWN, UNKNOWN), most_calls=2)

KEPT_AND_ORDERED = (
    Defect(
        "what runs is not kept",
        "hold",
        "if claim.keep:",
        "if False:",
        "S8",
        KEPT,
        edits,
    ),
    Defect(
        "what was running when its worker died goes behind the others",
        "hold",
        "state.first - 1",
        "state.last + 1",
        "S6 what runs is kept at the head",
        Config("three kept", (K, K, K)),
        edits,
    ),
    Defect(
        "what is kept counts as waiting",
        "backlog",
        "state.parked - loaded + len(messages(state))",
        "state.parked",
        "Q who is told so finds it full",
        KEPT_ONE_WAITS,
        edits,
    ),
    Defect(
        "a task that goes on elsewhere stays in the store",
        "_conclude",
        "case Outcome.OVER:\n            return forget(state, task)",
        "case Outcome.OVER:\n            return state",
        "S",
        KEPT_RETRY,
    ),
    Defect(
        "who publishes in order takes the key",
        "_start_or_wait",
        "claim.wait is not Wait.ENQUEUE and ",
        "",
        "Q who publishes does not run",
        IN_ORDER,
    ),
    Defect(
        "who publishes twice is put back",
        "_answer",
        "asks_twice = grant is not None and grant.parked and claim.wait is Wait.ENQUEUE",
        "asks_twice = False",
        "R",
        IN_ORDER,
    ),
    Defect(
        "the last to publish is the first",
        "_start_or_wait",
        "else state.last + 1)",
        "else state.first - 1)",
        "S6",
        IN_ORDER,
    ),
    Defect(
        "who only looks is parked",
        "_start_or_wait",
        "if claim.wait in (Wait.NOT, Wait.LOOK):",
        "if claim.wait is Wait.NOT:",
        "Q who does not queue is only put back",
        Config("two that look", (LOOKS, LOOKS)),
    ),
    Defect(
        "who looked before it ran is not put back",
        "_conclude",
        "if not _has_message(claim):",
        "if claim.wait is not Wait.QUEUE:",
        "S6 a lost run is remembered",
        Config("two that look, 1 fault", (LOOKS, LOOKS), faults=1),
    ),
)
RESERVES = (
    Defect(
        "nothing is reserved for a retry",
        "leave",
        "if mine is not None and claim.successor:",
        "if False:",
        "S6 nobody has the key between",
        RESERVED,
    ),
    Defect(
        "who holds nothing reserves",
        "leave",
        "if mine is not None and claim.successor:",
        "if claim.successor:",
        "Q no more are called than may",
        RESERVED_FAULT,
    ),
    Defect(
        "a retry that came too early waits for its own reservation",
        "reserve",
        "if entry is not None:",
        "if False:",
        "Q never granted and waiting",
        RESERVED,
        edits,
    ),
    Defect(
        "a slot is reserved for a retry that runs",
        "reserve",
        "if task in {*(h.task for h in state.holders), *(g.task for g in state.grants)}:",
        "if False:",
        "Q",
        RESERVED_2,
        edits,
    ),
)
REVOKES = (
    Defect(
        "what is revoked has its turn",
        "cancel",
        "state = to_grant(state, entry, now, Ending.REVOKED)",
        "state = to_grant(state, entry, now)",
        "S9",
        REVOKE,
        upkeep,
    ),
    Defect(
        "who was called cannot be revoked any more",
        "cancel",
        "elif turn is not None and turn.ending is None:",
        "elif False:",
        "S9",
        REVOKE,
        upkeep,
    ),
    Defect(
        "what is kept of a running task is revoked",
        "cancel",
        "messages(state)",
        "state.waiting",
        "S9 what waits can be revoked, and only that",
        REVOKE_KEPT,
        upkeep,
    ),
    Defect(
        "a revocation that frees the key calls nobody",
        "_settled",
        "state, wakes = settle(state, now)",
        "wakes = ()",
        "S4",
        Config("revoked", (REVOKED, Q, Q)),
        upkeep,
    ),
)
BURIES = (
    Defect(
        "a body that gives its lock up runs for ever",
        "_conclude",
        "count_lost(state, task) if held else state  #",
        "state  #",
        "S6 a lost run is remembered",
        LOST,
    ),
    Defect(
        "what kills its workers runs for ever",
        "_lost_too_often",
        "runs_lost(state, claim.task) >= MAX_LOST_RUNS",
        "False",
        "B what was lost so often does not run again",
        LOST,
    ),
    Defect(
        "only the last lost run counts",
        "count_lost",
        "runs_lost(state, task) + 1",
        "1",
        "B what was lost so often does not run again",
        LOST_TWICE,
        edits,
    ),
    Defect(
        "who was called to end is buried",
        "_answer",
        "if not ends and running",
        "if running",
        "B who was called to end is not buried",
        LOST_REVOKED,
    ),
    Defect(
        "the copy of what runs is buried",
        "_answer",
        "if not ends and running is None and",
        "if not ends and",
        "B nobody is buried while he runs",
        LOST_CHANGED,
    ),
    Defect(
        "a dead message is on no list",
        "bury",
        "(*state.dead, Dead(task, mode, limit, cause, now))",
        "state.dead",
        "B who is told to be dead is on the list",
        LOST,
        edits,
    ),
    Defect(
        "a dead message waits as well",
        "bury",
        "state = leave_queue(state, task)",
        "pass",
        "B",
        CALLED,
        edits,
    ),
    Defect(
        "one worker that does not know a task buries it",
        "bury",
        "turn.calls >= CALLS_BEFORE_DEAD",
        "True",
        "B a message is dead after so many calls",
        CALLED,
        upkeep,
    ),
    Defect(
        "what is handed back counts as called",
        "hand_back",
        "max(0, turn.calls - 1)",
        "turn.calls",
        "B what is handed back was not called",
        HANDED_BACK,
        upkeep,
    ),
    Defect(
        "what is replayed is dead at once",
        "forget_past",
        "done=state.done - {task}, lost=lost",
        "done=state.done - {task}",
        "B of what is replayed nothing is remembered",
        LOST,
        edits,
    ),
    Defect(
        "what is replayed is thrown away",
        "replay",
        "state = put_back(state, dead, now)",
        "pass",
        "B what is replayed waits again",
        LOST,
        upkeep,
    ),
    Defect(
        "what is replayed stands beside its own place",
        "put_back",
        "state = leave_queue(state, dead.task)",
        "pass",
        "Q",
        LOST_CHANGED,
        edits,
    ),
)
KEEPING = (*KEPT_AND_ORDERED, *RESERVES, *REVOKES, *BURIES)
