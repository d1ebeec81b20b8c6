"""A message goes back to the broker: the same task, later.

The task id, ``retries``, queue, priority, headers, ``expires``, serializer, links, chain, group
and chord all stay. Publishing comes first and acknowledging after it, so a crash in between makes
two messages of one id and never none; the store's rules sort that out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

from celery.exceptions import Ignore, Reject, Retry
from kombu.exceptions import OperationalError
from kombu.serialization import registry

from celery_dlock.core.backoff import CHANCE, FullJitter
from celery_dlock.core.events import Rescheduled, StaleRejected, Unavailable
from celery_dlock.core.state import Outcome
from celery_dlock.errors import BackendUnavailable, LockContended, LockLost, StaleFencingToken
from celery_dlock.tasks.execution import Execution
from celery_dlock.tasks.history import HISTORY, History
from celery_dlock.tasks.telling import tell_retry
from celery_dlock.tasks.visibility import longest_countdown

#: After this many runs in a row that ended because the lock was gone, the task fails visibly.
MAX_LOST_RUNS = 10

_AFTER_TROUBLE = FullJitter(base=1, cap=60)


def reschedule(
    execution: Execution, error: LockContended, countdown: float, since: float
) -> NoReturn:
    """The key is taken: come back in *countdown* seconds. *since* is when it was first refused."""
    past = execution.history
    tell_retry(execution, error)
    _publish(execution, countdown, replace(past, waits=past.waits + 1, since=since), str(error))
    raise Retry(exc=error, when=countdown)


def come_back(execution: Execution, left: float) -> NoReturn:
    """Another copy of this task is running: look again when its lease would end.

    This copy may be the only one that survives the other's worker, so it is kept; and it never
    writes a result, nor counts as a wait.
    """
    countdown = _bounded(execution, min(max(left, 1.0), 60.0))
    _publish(execution, countdown, execution.history, "this task is running")
    raise Ignore("another delivery of this task is running")


def store_away(execution: Execution, error: BackendUnavailable) -> NoReturn:
    """The store does not answer: the message waits for it in the broker, the task does not fail."""
    execution.runtime.sinks.emit(Unavailable(execution.subject, str(error)))
    if execution.request.is_eager or execution.runtime.settings.on_unavailable == "fail":
        if execution.asks is None:  # else its message may wait there, and must not run later
            execution.claims = ()
        raise error
    past = execution.history
    countdown = _bounded(execution, _AFTER_TROUBLE.delay(past.away, CHANCE.random))
    tell_retry(execution, error)
    _publish(execution, countdown, replace(past, away=past.away + 1), str(error))
    raise Retry(exc=error, when=countdown)


def run_again(execution: Execution, error: LockLost | StaleFencingToken) -> NoReturn:
    """The body ended because its lock was gone. That is no failure: the message runs again."""
    if isinstance(error, StaleFencingToken):
        stale = StaleRejected(execution.subject, error.resource, error.mine)
        execution.runtime.sinks.emit(stale)
    past = execution.history
    if execution.request.is_eager or past.lost >= MAX_LOST_RUNS:
        raise error
    carried = execution.leave(Outcome.REPEAT)
    if carried and execution.asks:
        raise Ignore(f"{error}; the lock store has its message")
    countdown = _bounded(execution, _AFTER_TROUBLE.delay(past.lost, CHANCE.random))
    # Also when another delivery is running: on some brokers (Redis) it is the same message to
    # acknowledge, so this one could take away the only copy that survives the other's worker.
    if not carried:
        tell_retry(execution, error)
    _publish(execution, countdown, replace(past, lost=past.lost + 1), str(error))
    if carried:
        raise Ignore(f"{error}; another delivery of this task has it")
    raise Retry(exc=error, when=countdown)


def _bounded(execution: Execution, countdown: float) -> float:
    """The waits that no policy chose keep within what the broker allows."""
    return min(countdown, longest_countdown(execution.task.app))


def _publish(execution: Execution, countdown: float, history: History, reason: str) -> None:
    task, request = execution.task, execution.request
    headers = dict(request.as_execution_options()["headers"] or {})
    history = replace(history, carried=execution.runtime.sinks.carry(execution.subject))
    options = {
        "headers": {**headers, HISTORY: history.header()},
        "countdown": countdown,
        # Before 5.7 Celery does not carry this over.
        "ignore_result": vars(request).get("ignore_result", task.ignore_result),
    }
    serializer = registry.type_to_name.get(execution.content_type)
    if serializer is not None:
        options["serializer"] = serializer
    try:
        task.signature_from_request(request, retries=request.retries, **options).apply_async()
    except (OperationalError, ConnectionError) as exc:
        if task.acks_late:
            # The broker still has this message; requeueing puts it behind the others.
            raise Reject(exc, requeue=True) from exc
        raise
    execution.runtime.sinks.emit(Rescheduled(execution.subject, reason, countdown))
