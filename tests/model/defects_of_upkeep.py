"""The machine with one rule spoilt at a time: of what is revoked, buried, handed back, replayed."""

from __future__ import annotations

from celery_dlock.core import edits, upkeep
from celery_dlock.core.state import Wait
from tests.model.config import CRASH, REPLY, Config, Task
from tests.model.defects import Defect

Q, CHANGES = Task(), Task(becomes=Task(Wait.PLACE))
REVOKED, UNKNOWN = Task(revocable=True), Task(unknown=True)

REVOKE = Config("revoked, 1 fault", (REVOKED, Q), faults=1)
REVOKE_KEPT = Config("kept and revoked", (Task(keep=True, revocable=True),))
LOST = Config("one lost run", (Q,), faults=2, most_lost=1)
LOST_TWICE = Config("two lost runs", (Q,), faults=2, most_lost=2)
LOST_REVOKED = Config("one lost run, revoked", (REVOKED,), faults=2, most_lost=1)
LOST_CHANGED = Config(
    "one lost run, two versions",
    (CHANGES, Q),
    faults=2,
    kinds=frozenset({CRASH, REPLY}),
    most_lost=1,
)
HANDED_BACK = Config("handed back, 1 fault", (Q, Task(foreign=True)), faults=1, most_calls=2)
HANDED_BACK_LATE = Config(
    "handed back, and late", (Q, Task(foreign=True, gives_up=True)), faults=1, most_calls=2
)
CALLED = Config("two calls", (UNKNOWN, UNKNOWN), most_calls=2)

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
        "an ending that is under way is handed back",
        "hand_back",
        "and not turn.taker:",
        ":",
        "S7 one delivery brings an ending about",
        HANDED_BACK_LATE,
        upkeep,
    ),
    Defect(
        "what is replayed is dead at once",
        "forget_past",
        "forget_lost(replace(state, done=state.done - {task}), task)",
        "replace(state, done=state.done - {task})",
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
UPKEEP = (*REVOKES, *BURIES)
