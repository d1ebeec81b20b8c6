"""Workers and resources that do the wrong thing around sound rules."""

from __future__ import annotations

from celery_dlock.core.state import Outcome, WaitMode
from tests.model import entering, workers
from tests.model.config import REDELIVER, REPLY, Config, Task
from tests.model.defects import Defect, Disorder
from tests.model.world import (
    ACK,
    EFFECT,
    LEAVE_DONE,
    LEAVE_REPEAT,
    LEAVE_UNHEARD,
    SAY_ABANDONED,
    SKIP_CALLBACKS,
)

N, P = Task(WaitMode.NOT), Task(WaitMode.PLACE)
PLACES = Config("two places, 1 fault", (P, P), faults=1)
SKIP = Config("two that skip, 1 fault", (N, N), faults=1)
KEPT = Config("two kept, early, 1 fault", (Task(keep=True),) * 2, faults=1, early_ack=True)
COPIED = Config(
    "a copy, and a lost reply",
    (Task(),),
    faults=2,
    kinds=frozenset({REPLY, REDELIVER}),
    shared_ack=True,
)

AROUND: tuple[Defect | Disorder, ...] = (
    Defect(
        "a copy completes the task with a skip",
        "_judged",
        "case Same():\n            return Worker(AGAIN, me.task, tag=me.tag)",
        "case Same():\n            return Worker(SKIP_CALLBACKS, me.task, tag=me.tag)",
        "S7",
        SKIP,
        entering,
    ),
    Defect(
        "the resource has no fence",
        "write",
        "if token < fence[slot]:",
        "if False:",
        "S2 writes come in the order of their tokens",
        module=workers,
    ),
    Defect(
        "the resource does not know what it has done",
        "once",
        "if effects[task]:",
        "if False:",
        "S2 one effect a task",
        module=workers,
    ),
    Disorder(
        "done is written before the callbacks are published",
        {EFFECT: LEAVE_DONE, LEAVE_DONE: SKIP_CALLBACKS},
        "S8",
        {},
    ),
    Disorder(
        "a killed body counts as a result",
        {},
        "S8",
        {SAY_ABANDONED: Outcome.DONE},
    ),
    Disorder(
        "an answer that is lost counts as a result",
        {},
        "S8",
        {LEAVE_UNHEARD: Outcome.DONE},
    ),
    Disorder(
        "with an answer that is lost the only message is dropped",
        {},
        "S8",
        {LEAVE_UNHEARD: Outcome.OVER},
        KEPT,
    ),
    Disorder(
        "with an answer that is lost a copy's message is dropped, which was acknowledged for both",
        {},
        "S8",
        {LEAVE_UNHEARD: Outcome.OVER},
        COPIED,
    ),
    Disorder(
        "a message is acknowledged instead of published again",
        {LEAVE_REPEAT: ACK},
        "S8",
        {},
        PLACES,
    ),
)
