"""Does what was planned for a delivery: tells it, stores it, publishes it, and raises for Celery.

Publishing comes first and acknowledging after it, so a crash in between makes two messages of one
id and never none; the store's rules sort that out.
"""

from __future__ import annotations

import logging
from typing import Any, NoReturn, assert_never

from celery.exceptions import Ignore, Retry

from celery_dlock.core.backoff import CHANCE
from celery_dlock.core.state import Outcome
from celery_dlock.delivery.brief import logged
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
                execution.hold.owe(())
            raise plan.error
        case Gone():
            raise Ignore(plan.reason)
        case Resend():
            _resend(execution, plan)
        case Repeat(error=error):
            carried = execution.hold.give_back(Outcome.REPEAT, execution.message())
            then = repeated(execution.known(), error, CHANCE.random, carried=carried)
            return carry_out(execution, then)
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
        who = execution.subject
        logger.info("Task %s[%s] runs again: %s", who.task_name, who.task_id, plan.reason)
    if not isinstance(plan, FailWith | Repeat):
        logged(execution.request)


def _resend(execution: Execution, plan: Resend) -> NoReturn:
    countdown, ends = plan.countdown, plan.ends
    if plan.bounded:
        countdown = min(countdown, longest_countdown(execution.task.app))
    if isinstance(ends, str):
        if publish_again(execution, countdown, plan.history, plan.reason) and plan.gives_back:
            execution.hold.give_back(Outcome.OVER)
        raise Ignore(ends)
    store_retry(execution, ends)
    publish_again(execution, countdown, plan.history, plan.reason)
    raise Retry(exc=ends, when=countdown)
