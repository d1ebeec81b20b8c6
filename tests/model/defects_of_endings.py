"""The machine with one rule of endings spoilt at a time: of who waits too long, or one too many."""

from __future__ import annotations

from celery_dlock.core import edits, turns
from tests.model.config import Config, Task
from tests.model.defects import Defect

Q, IMPATIENT = Task(), Task(gives_up=True)
ONE_WAITS, REPLACES = Task(max_waiting=1), Task(max_waiting=1, replaces=True)

LATE = Config("two, one gives up, 1 fault", (Q, IMPATIENT), faults=1)
BOTH_LATE = Config("two that give up, 1 fault", (IMPATIENT, IMPATIENT), faults=1)
FULL = Config("one may wait", (ONE_WAITS, ONE_WAITS, ONE_WAITS))
REPLACED = Config("the newest replaces", (REPLACES, REPLACES, REPLACES))
TWO_REPLACED = Config("the newest replaces, 1 fault", (REPLACES, REPLACES), faults=1)

ENDINGS = (
    Defect(
        "nobody has ever waited for too long",
        "settle",
        "if _waited_enough(state, w, now)",
        "if False",
        "S4",
        LATE,
        module=turns,
    ),
    Defect(
        "the copy of a running task is ended",
        "insert",
        "and not had_its_turn",
        "",
        "Q never granted while it runs",
        BOTH_LATE,
        edits,
    ),
    Defect(
        "an ending keeps a slot",
        "free",
        "(g for g in state.grants if g.reserves)",
        "state.grants",
        "S",
        Config("three, one gives up", (Q, IMPATIENT, Q)),
        edits,
    ),
    Defect(
        "who is called to end runs",
        "_take_turn",
        "if ending is not None:",
        "if False:",
        "R",
        Config("three, one gives up", (Q, IMPATIENT, Q)),
    ),
    Defect(
        "every delivery brings the ending about",
        "_take_turn",
        'if grant.taker not in ("", claim.nonce):',
        "if False:",
        "S7 one delivery brings an ending about",
        LATE,
    ),
    Defect(
        "an ending whose taker has died is nobody's to take",
        "_wake",
        'taker=""',
        "taker=grant.taker",
        "S5",
        LATE,
        module=turns,
    ),
    Defect(
        "who makes room is thrown away without a word",
        "_start_or_wait",
        "state = to_grant(state, oldest, now, Ending.DROPPED)",
        "state = drop_entry(state, oldest.task)",
        "S8",
        REPLACED,
    ),
    Defect(
        "as many wait as come",
        "_full",
        "return 0 < claim.max_waiting <= backlog(state)",
        "return False",
        "Q no more wait than may",
        FULL,
    ),
    Defect(
        "the copy of a running task makes room",
        "messages",
        "if w.parked and w.task not in running",
        "if w.parked",
        "Q never granted while it runs",
        TWO_REPLACED,
        module=edits,
    ),
)
