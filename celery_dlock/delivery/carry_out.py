"""Does what was planned for a delivery: tells it, stores it, publishes it, and raises for Celery.

Publishing comes first and acknowledging after it, so a crash in between makes two messages of one
id and never none; the store's rules sort that out.

A delivery that ends while its task goes on tells that to the worker, and not where in the code.
For whatever a task raises, Celery copies the code of every frame, down to the position of each
instruction, writes a traceback, twice, and has the main process read some 40 kB. For a task that
only goes elsewhere that was more work than to park it. Nor does Celery log it: our own line names
the key, the holder and the reason, where Celery's says "ignored", a "retry" that is none, or that a
task which was skipped has "succeeded".
"""

from __future__ import annotations

import logging
import sys
from typing import Any, NoReturn, assert_never, cast

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from celery import current_task
from celery.app import trace
from celery.exceptions import Ignore, Retry, TaskPredicate

from celery_dlock.core.backoff import CHANCE
from celery_dlock.core.event_log import tells
from celery_dlock.core.state import Outcome
from celery_dlock.delivery.execution import Execution
from celery_dlock.delivery.plan import (
    FailWith,
    Finish,
    Gone,
    Plan,
    Repeat,
    Resend,
    Revoke,
    repeated,
)
from celery_dlock.delivery.publish import publish_again
from celery_dlock.delivery.result_state import skip_rest_of_chain, store_retry, store_revoked
from celery_dlock.messages.countdown import longest_countdown

logger = logging.getLogger("celery_dlock")

#: Where an exception says that its delivery ended before the body. It is told without a traceback,
#: and tools for errors may look at it.
_BEFORE_BODY = "dlock_before_body"

#: Where one says that the lock store has the message now.
_PARKED = "dlock_parked"

#: Where a request says that what became of it has been logged.
_LOGGED = "dlock_logged"

_LOGGED_BY_CELERY = (trace.LOG_IGNORED, trace.LOG_RETRY, trace.LOG_SUCCESS)


def carry_out(execution: Execution, plan: Plan) -> dict[str, Any]:
    """The result of a task that ends with one.

    Raises the error of one that fails, and Celery's ``Retry`` or ``Ignore`` where this delivery
    ends, and its task goes on or is over.
    """
    _tell(execution, plan)
    match plan:
        case Finish(result=result):
            if result.then == "stop":
                skip_rest_of_chain(execution.task, execution.request, result.result)
            return dict(result.result)
        case Revoke():
            raise Ignore("revoked while it waited")
        case FailWith():
            if not plan.gives_back:
                execution.hold.claims = ()
            raise plan.error
        case Gone():
            gone = Ignore(plan.reason)
            setattr(gone, _PARKED, plan.parked)
            raise gone
        case Resend():
            _resend(execution, plan)
        case Repeat(error=error):
            carried = execution.hold.give_back(Outcome.REPEAT, execution.message())
            next_plan = repeated(execution.facts(), error, CHANCE.random, carried=carried)
            return carry_out(execution, next_plan)
        case _:
            assert_never(plan)


def _tell(execution: Execution, plan: Plan) -> None:
    if isinstance(plan, Revoke):
        store_revoked(execution)
        execution.final = True
        if execution.unique is not None:
            execution.unique.revoked()
    if plan.event is not None:
        execution.runtime.sinks.emit(plan.event)
    elif isinstance(plan, Gone):
        subject = execution.subject
        logger.info("Task %s[%s] runs again: %s", subject.task_name, subject.task_id, plan.reason)
    if not isinstance(plan, FailWith | Repeat) and tells():
        setattr(execution.request, _LOGGED, True)


def _resend(execution: Execution, plan: Resend) -> NoReturn:
    countdown, ends = plan.countdown, plan.ends
    if plan.bounded:
        countdown = min(countdown, longest_countdown(execution.task.app))
    if isinstance(ends, Exception):
        store_retry(execution, ends)
    publish_again(execution, countdown, plan.history, plan.reason)
    raise Ignore(ends) if isinstance(ends, str) else Retry(exc=ends, when=countdown)


# What Celery tells of it.


def without_traceback(end: TaskPredicate) -> TaskPredicate:
    """*end* of a delivery before its body, as the main process is to read it."""
    setattr(end, _BEFORE_BODY, True)
    return end.with_traceback(None)


def is_parked(end: BaseException) -> bool:
    """Whether the message of a delivery that has ended with *end* waits in the lock store."""
    return getattr(end, _PARKED, False)


def says_more(record: logging.LogRecord) -> bool:
    """Whether Celery's *record* adds to what was logged of its delivery."""
    if record.msg not in _LOGGED_BY_CELERY or not current_task:
        return True
    request = current_task.request
    values: Any = record.args
    return not (request.id == values["id"] and vars(request).get(_LOGGED))


class BriefExceptionInfo(ExceptionInfo):  # type: ignore[misc]
    """Celery's own, but without a traceback for a task that ended before its body."""

    def __init__(self, exc_info: Any = None, internal: bool = False) -> None:
        kind, exception, _ = exc_info or cast("Any", sys.exc_info())
        if not getattr(exception, _BEFORE_BODY, False):
            super().__init__(exc_info, internal)
            return
        self.type, self.internal = kind, internal
        self.traceback = f"{kind.__name__}: {exception}"
        self.exception = ExceptionWithTraceback(exception, self.traceback)


def tell_briefly() -> None:
    """From now on in this process, and in those that it forks; Celery has no other place for it."""
    trace.ExceptionInfo = BriefExceptionInfo
    trace.logger.addFilter(says_more)
