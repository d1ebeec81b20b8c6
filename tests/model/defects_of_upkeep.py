"""The machine with one rule spoilt at a time: what is revoked, dead, handed back or replayed."""

from __future__ import annotations

from celery_dlock.core import edits, turns, upkeep
from celery_dlock.core.state import WaitMode
from tests.model.config import CRASH, REPLY, Config, Task
from tests.model.defects import Defect

Q, CHANGES = Task(), Task(becomes=Task(WaitMode.PLACE))
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
IN_VAIN = Config("in vain", (Task(unanswered=True), Q, Q))
IN_VAIN_LATE = Config("in vain, and late", (Task(unanswered=True, gives_up=True), Q), faults=1)
IN_VAIN_ORDERED = Config(
    "in vain, ordered", (Task(unanswered=True, ordered=True), Task(ordered=True))
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
DEAD_LETTERS = (
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
        "who was called to end is dead-lettered",
        "_answer",
        "if not ends and running",
        "if running",
        "B who was called to end is not dead-lettered",
        LOST_REVOKED,
    ),
    Defect(
        "the copy of what runs is dead-lettered",
        "_answer",
        "if not ends and running is None and",
        "if not ends and",
        "B nobody is dead while he runs",
        LOST_CHANGED,
    ),
    Defect(
        "a dead message is on no list",
        "to_dead_letter",
        "(*state.dead, Dead(task, mode, limit, cause, now))",
        "state.dead",
        "B who is told to be dead is on the list",
        LOST,
        edits,
    ),
    Defect(
        "a dead message waits as well",
        "to_dead_letter",
        "state = leave_queue(state, task)",
        "pass",
        "B",
        CALLED,
        edits,
    ),
    Defect(
        "one worker that does not know a task dead-letters it",
        "dead_letter",
        "turn.woken >= WAKES_BEFORE_DEAD",
        "True",
        "B a message is dead after so many calls",
        CALLED,
        upkeep,
    ),
    Defect(
        "what is handed back counts as called",
        "hand_back",
        "max(0, turn.woken - 1)",
        "turn.woken",
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
UNANSWERED = (
    Defect(
        "a turn that nobody takes blocks its key for ever",
        "free",
        "if g.reserves",
        "if g.ending is None",
        "S4 no slot stays free while a message waits that fits",
        IN_VAIN,
        edits,
    ),
    Defect(
        "a turn is overtaken whose order was promised",
        "free",
        "if g.reserves",
        "if g.ending is None and not g.unanswered",
        "",
        IN_VAIN_ORDERED,
        edits,
    ),
    Defect(
        "who was called is patient for ever",
        "_wake",
        "ending = Ending.TIMED_OUT",
        "pass",
        "P who was called in vain ends in time",
        IN_VAIN_LATE,
        turns,
    ),
    Defect(
        "a turn forgets how patient its message was",
        "to_grant",
        "gives_up=entry.gives_up",
        "gives_up=None",
        "P",
        IN_VAIN_LATE,
        edits,
    ),
    Defect(
        "who comes too late to its turn is patient anew",
        "_take_turn",
        "return to_head(state, claim, grant, now), _park(state)",
        "return insert(state, claim, now, state.first - 1, None), _park(state)",
        "P who waits on is as patient",
        IN_VAIN_LATE,
    ),
    Defect(
        "since when a message is handed back is forgotten",
        "hand_back",
        "handed_back=since",
        "handed_back=None",
        "P since when it is handed back is known",
        HANDED_BACK,
        upkeep,
    ),
)
UPKEEP = (*REVOKES, *DEAD_LETTERS, *UNANSWERED)
