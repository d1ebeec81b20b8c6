"""What a result backend is told of a task that does not run now: that it waits, or was revoked.

The state ``PARKED`` is written *before* the message goes to the store: a moment later another
worker may have run the task, and this would write over its result. That takes a question to the
store first, whether the task has to wait at all, so it is done only for tasks that report their
state on the way anyhow (Celery's ``track_started``).
"""

from __future__ import annotations

import logging
import time
from typing import NoReturn

from celery.exceptions import Ignore

from celery_dlock.core.events import Revoked
from celery_dlock.tasks.execution import Execution

logger = logging.getLogger("celery_dlock")

#: The state of a task whose message waits in the lock store.
PARKED = "PARKED"


def looks_first(execution: Execution) -> bool:
    """Whether to ask for the key before queueing for it.

    A task that retries looks as well where its key is kept for it: the attempt before, which has
    published it, may not have left yet, and behind it the key is reserved.
    """
    asks = execution.asks
    if asks is None:
        return False
    return _reports(execution) or (asks.reserve_retries and bool(execution.request.retries))


def tell_parked(execution: Execution, key: str) -> None:
    """The task is about to wait for *key*: its result says so, with the key and since when."""
    if not _reports(execution):
        return
    task, request = execution.task, execution.request
    meta = {"key": key, "since": execution.history.since or time.time()}
    try:
        task.backend.store_result(request.id, meta, PARKED, request=request)
    except Exception:  # it waits all the same
        logger.exception("the state of %s could not be stored", request.id)


def revoke(execution: Execution, key: str) -> NoReturn:
    """The task was revoked while it waited: its result says so, and nothing of it runs."""
    task, request = execution.task, execution.request
    task.backend.mark_as_revoked(
        request.id, "revoked", request=request, store_result=not _ignores_result(execution)
    )
    execution.final = True
    execution.runtime.sinks.emit(Revoked(execution.subject, key))
    raise Ignore("revoked while it waited")


def _reports(execution: Execution) -> bool:
    return bool(execution.task.track_started) and not _ignores_result(execution)


def _ignores_result(execution: Execution) -> bool:
    ignored = vars(execution.request).get("ignore_result")
    return bool(execution.task.ignore_result if ignored is None else ignored)
