"""The machine with one rule spoilt at a time: of what is kept, ordered, reserved or unheard."""

from __future__ import annotations

from celery_dlock.core import edits
from tests.model.config import REPLY, Config, Task
from tests.model.defects import Defect

Q, K, K2 = Task(), Task(keep=True), Task(keep=True, limit=2)
ORDERED, LOOKS = Task(ordered=True), Task(looks=True)

KEPT = Config("two kept, early, 1 fault", (K, K), faults=1, early_ack=True)
KEPT_ONE_WAITS = Config("one may wait", (Task(keep=True, max_waiting=1),) * 2)
KEPT_RETRY = Config("a kept retry", (Task(keep=True, retries_as=2), Q, K))
UNHEARD_TWICE = Config("two lost replies", (Q,), faults=2, kinds=frozenset({REPLY}))
IN_ORDER = Config("ordered", (ORDERED,) * 3)
RESERVED = Config("a retry that is reserved", (Task(retries_as=2, reserves=True), Q, Q))
RESERVED_FAULT = Config("reserved, 1 fault", (Task(retries_as=2, reserves=True), Q, Q), faults=1)
RESERVED_2 = Config(
    "a reserved retry, two slots, 2 faults",
    (Task(limit=2, retries_as=1, reserves=True), Task(limit=2)),
    workers=3,
    faults=2,
)
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
        "a task that is done stays in the store",
        "_conclude",
        "case Outcome.DONE:\n            state = forget(state, task)",
        "case Outcome.DONE:",
        "S",
        KEPT_RETRY,
    ),
    Defect(
        "who publishes in order takes the key",
        "_start_or_wait",
        "not claim.enqueues and ",
        "",
        "Q who publishes does not run",
        IN_ORDER,
    ),
    Defect(
        "who publishes twice is put back",
        "_answer",
        "asks_twice = grant is not None and grant.parked and claim.enqueues",
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
        "if claim.wait in (WaitMode.NOT, WaitMode.LOOK):",
        "if claim.wait is WaitMode.NOT:",
        "Q who does not queue is only put back",
        Config("two that look", (LOOKS, LOOKS)),
    ),
    Defect(
        "who looked before it ran is not put back",
        "_conclude",
        "if not claim.has_message:",
        "if claim.wait is not WaitMode.QUEUE:",
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
UNHEARD = (
    Defect(
        "what nobody heard to be given stays taken",
        "leave",
        "if mine is not None:",
        "if mine is not None and outcome is not Outcome.UNUSED:",
        "R who left has nothing to leave",
    ),
    Defect(
        "who did not hear that it has left is told that it has lost",
        "leave",
        "(claim.again and _may_have_left(state, claim, outcome))",
        "False",
        "R asked again, it left as the first time",
    ),
    Defect(
        "a call in an answer that is lost is not repeated",
        "leave",
        "if claim.again:",
        "if False:",
        "R who was called in a lost answer is called again",
    ),
    Defect(
        "each answer that is lost counts as a lost run",
        "_count_start",
        "state if runs_lost(state, task) else ",
        "",
        "B what never ran is not counted as lost",
        UNHEARD_TWICE,
    ),
    Defect(
        "whose answer was lost waits behind those that have not started",
        "_count_start",
        "count_lost(state, task)",
        "state",
        "S6 a lost run is remembered",
    ),
    Defect(
        "the next one overtakes a task that did not hear that its turn has come",
        "_unheard",
        "keep_turn(state, claim, now)",
        "state",
        "Q a turn of which nobody heard is kept",
    ),
    Defect(
        "who has no turn gets one because nobody heard",
        "_conclude",
        "return _unheard(state, claim, now) if held else state",
        "return _unheard(state, claim, now)",
        "Q who had no turn gets none",
    ),
)
KEEPING = (*KEPT_AND_ORDERED, *RESERVES, *UNHEARD)
