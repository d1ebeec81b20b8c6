"""The end of a delivery: its outcome, and the release of its lock.

Leaving happens in ``task_postrun`` and not in the body's ``finally``: only after the result is
stored and the callbacks are published may a redelivered copy be dropped as done, or the chain
behind it would never go on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from celery import states
from celery.exceptions import Reject, Retry, TaskPredicate

from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Drop, Outcome, Reason
from celery_dlock.delivery.execution import Execution
from celery_dlock.delivery.publish import keys_of_next
from celery_dlock.delivery.unique import UniqueRun, end_unique
from celery_dlock.locks.manager import Successor
from celery_dlock.locks.other_keys import EXPECTED_FOR, RESERVED_FOR
from celery_dlock.messages.claims import failed, left_by, lets_go
from celery_dlock.messages.countdown import seconds_until
from celery_dlock.messages.headers import (
    EXECUTION,
    HISTORY,
    History,
    identity,
    identity_of_next,
)
from celery_dlock.runtime import runtime


def leave(task: Any = None, state: str | None = None, retval: Any = None, **_: Any) -> None:
    """The result of *task* is stored and the callbacks are published: now the lock may go."""
    request = task.request
    execution = vars(request).get(EXECUTION)
    if not isinstance(execution, Execution):
        end = partial(failed, task, let_go=lets_go(task))
        outcome = _outcome(state, retval, end, eager=False, queues=True)
        leave_turn(task, outcome)
        if outcome.is_final and state != states.RETRY:
            end_unique(task.app, vars(request))
        return
    if isinstance(retval, TaskPredicate):
        # It holds the tracer's frame, which holds it, and with it 400 kB of copied code: a cycle
        # that the garbage collector comes for after hundreds of them.
        retval.__traceback__ = None
        if _comes_back(execution, retval):
            execution.hold.claims = ()
    eager, queues = bool(execution.request.is_eager), execution.queueing is not None
    end = partial(_failed, execution)
    outcome = _outcome(state, retval, end, eager=eager, queues=queues)
    if execution.final:
        outcome = Outcome.DONE
    elif state == states.RETRY and identity(execution.request) != execution.history.task:
        outcome = Outcome.OVER  # the body took back its count: the next attempt is this one again
    successor = execution.successor if outcome is Outcome.DONE else None
    if state == states.RETRY:
        successor = _successor(execution, retval)
    unique = execution.unique
    give_back = partial(execution.hold.give_back, outcome, None, successor)
    try:
        if unique is not None:
            _tell_unique(unique, execution, outcome, retval)
        give_back(0 if unique is None else unique.remembers)
    except BaseException:
        # A soft time limit strikes once, and can strike here: Celery would only log it.
        give_back(0 if unique is None else unique.remembers)
        raise
    finally:
        vars(request).pop(EXECUTION, None)
        execution.ended()


def _tell_unique(unique: UniqueRun, execution: Execution, outcome: Outcome, retval: Any) -> None:
    """Update its claim before the lock is released: the next one to come looks at the claim."""
    if isinstance(retval, Retry):
        due = time.time() + seconds_until(execution.task.app, retval.when or 0)
        if _comes_back(execution, retval):  # the same attempt
            unique.waits(due=due)
        else:
            unique.retries(identity_of_next(identity(execution.request)), due)
        return
    stays = _comes_back(execution, retval) or (isinstance(retval, Reject) and retval.requeue)
    if (outcome.is_final or outcome is Outcome.OVER) and not stays:
        unique.ends()


def _comes_back(execution: Execution, retval: Any) -> bool:
    """Whether only this delivery has ended: its task is published again, or waits in the store."""
    refused = execution.hold.lease is None and not (execution.final or execution.ends_itself)
    return isinstance(retval, TaskPredicate) and refused


def leave_turn(task: Any, outcome: Outcome) -> None:
    """If the task was woken from a queue, release the turn for which it has not asked.

    Its ``before_start`` raised, say, its arguments give no key any more, or in this version it has
    no lock: then its message is the broker's. The key would stay reserved for it, and it would be
    woken again for ever.
    """
    request = task.request
    if request.get(HISTORY) is None or History.read(request, identity(request)).key is None:
        return
    process = runtime(task.app)
    turns = left_by(task, request, done_ttl=process.done_ttl(queues=True))
    process.manager.take_back(turns, outcome)


def _failed(execution: Execution) -> Outcome:
    """The outcome, should it have failed."""
    queueing = execution.queueing
    # Of a message that is kept in any case, what waits is that one: it would run again at once.
    waits = execution.hold.lease is not None and queueing is not None and not queueing.keep
    let_go = bool(execution.request.is_eager) or lets_go(execution.task)
    return failed(execution.task, let_go=let_go, duplicate_may_wait=waits)


def _outcome(
    state: str | None, retval: Any, failure: Callable[[], Outcome], *, eager: bool, queues: bool
) -> Outcome:
    passing = sys.exc_info()[1]  # Celery tells us in a finally; SUCCESS only says the body returned
    stored = passing is None or (
        isinstance(passing, Exception) and not isinstance(passing, MemoryError)
    )
    if not stored and not eager:
        return Outcome.ABANDONED  # the message stays with the broker: its next delivery must run
    if state == states.FAILURE:
        return failure()
    if state in (states.SUCCESS, states.RETRY):
        return Outcome.DONE  # a retry is another attempt: of this one a copy may still come
    if state is None and not eager:
        return Outcome.ABANDONED  # SystemExit: a shutdown, or the body's own
    if queues and isinstance(retval, Reject) and retval.requeue:
        return Outcome.UNUSED  # the broker may not have it: a copy that waits was acknowledged
    return Outcome.OVER


def _successor(execution: Execution, retry: Any) -> Successor | None:
    """The task that *retry* has published, if keys are to be kept for it: those that it has.

    A message in the store is certain of its turn at its key. It may come late to the others.
    """
    reserves = execution.task.lock_definition.reserve and not execution.request.is_eager
    if not (reserves and isinstance(retry, Retry)):
        return None
    if execution.next_verdict == Drop(Reason.DONE):
        return None  # this attempt runs once more, after its next one
    left = seconds_until(execution.task.app, retry.when or 0)
    stays = EXPECTED_FOR if execution.next_verdict is None else RESERVED_FOR
    patience = stays + int(left * SECOND)
    sig = retry.sig  # of whoever raises it without publishing there is none
    keys = keys_of_next(execution, sig.args, sig.kwargs) if sig else execution.keys
    attempt = identity_of_next(identity(execution.request))
    return Successor(attempt, dict.fromkeys(keys.own, patience))
