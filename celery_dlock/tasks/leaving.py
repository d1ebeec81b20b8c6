"""The end of a delivery: what it came to, and that the lock may go.

Leaving happens in ``task_postrun`` and not in the body's ``finally``: only after the result is
stored and the callbacks are published may a redelivered copy be dropped as done, or the chain
behind it would never go on.
"""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any

from celery import states
from celery.exceptions import Retry, TaskPredicate
from celery.utils.time import maybe_make_aware

from celery_dlock.core.lease import SECOND
from celery_dlock.core.manager import Successor
from celery_dlock.core.state import Outcome
from celery_dlock.tasks.execution import EXECUTION, Execution

#: Seconds for which a key stays reserved for a retry that is due and has not come.
RETRY_GRACE = 60.0


def leave_after_result(
    task: Any = None, state: str | None = None, retval: Any = None, **_: Any
) -> None:
    """The result is stored and the callbacks are published: now the lock may go."""
    execution = vars(task.request).get(EXECUTION)
    if not isinstance(execution, Execution):
        return
    if isinstance(retval, TaskPredicate):
        # It holds the tracer's frame, which holds it, and with it 400 kB of copied code: a cycle
        # that the garbage collector comes for after hundreds of them.
        retval.__traceback__ = None
    eager = bool(execution.request.is_eager)
    outcome = Outcome.DONE if execution.final else _outcome(state, eager=eager)
    successor = _successor(execution, retval) if state == states.RETRY else None
    try:
        execution.leave(outcome, successor)
    except BaseException:
        # A soft time limit strikes once, and can strike here: Celery would only log it. What the
        # interrupted call has freed by now is not a loss to be told.
        for key in execution.keys.all:
            execution.told.first(key)
        execution.leave(outcome, successor)
        raise
    finally:
        vars(task.request).pop(EXECUTION, None)
        execution.ended()


def _outcome(state: str | None, *, eager: bool) -> Outcome:
    passing = sys.exc_info()[1]  # Celery tells us in a finally; SUCCESS only says the body returned
    stored = passing is None or (
        isinstance(passing, Exception) and not isinstance(passing, MemoryError)
    )
    if not stored and not eager:
        return Outcome.ABANDONED  # the message stays with the broker: its next delivery must run
    if state in (states.SUCCESS, states.FAILURE, states.RETRY):
        return Outcome.DONE  # a retry is another attempt: of this one a copy may still come
    if state is None and not eager:
        return Outcome.ABANDONED  # SystemExit: a shutdown, or the body's own
    return Outcome.OVER


def _successor(execution: Execution, retry: Any) -> Successor | None:
    """The task that *retry* has published, if its keys are to be kept for it."""
    if not (execution.asks and execution.asks.reserve_retries and isinstance(retry, Retry)):
        return None
    task_id, retries, nesting = execution.history.task.rsplit(":", 2)
    when = retry.when or 0
    if isinstance(when, datetime):
        now = execution.task.app.now()
        when = (maybe_make_aware(when) - maybe_make_aware(now)).total_seconds()
    patience = int((max(0.0, when) + RETRY_GRACE) * SECOND)
    return Successor(f"{task_id}:{int(retries) + 1}:{nesting}", patience)
