"""The result state of a task that does not run now: it waits, was revoked or skipped.

Always *before* its message goes on: a moment later another worker may have run the task, and this
would write over its result. For ``PARKED`` that takes a question to the store first, whether the
task has to wait at all, so it is done only for tasks that report their state on the way anyhow
(Celery's ``track_started``).

A chain behind a task that is skipped ends with it, and that is stored for each of its tasks: a
chord in whose header the chain stands would wait for ever for its last task. Celery does the same
for a task that fails.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping
from traceback import format_exception
from typing import Any

from celery.app.task import Context, Task
from celery.backends.base import DisabledBackend
from celery.backends.rpc import RPCBackend
from celery.states import READY_STATES

from celery_dlock.core.access import LimitUnknown
from celery_dlock.delivery.execution import Execution
from celery_dlock.errors import BackendUnavailable
from celery_dlock.messages.headers import RETRY_STORED

logger = logging.getLogger("celery_dlock")

#: The state of a task whose message waits in the lock store.
PARKED = "PARKED"


class RetryStored:
    """A result backend that has stored ``RETRY`` of the running task, and does not do it again.

    Celery stores it after the copy is published, by looking and then writing. Whatever a faster
    copy has stored in between would be gone.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def mark_as_retry(self, *args: Any, **kwargs: Any) -> None:
        """Nothing is left to be done."""


def asks_before_queueing(execution: Execution) -> bool:
    """Whether to ask for the key before queueing for it.

    A task for which its key is kept looks as well: the attempt before, which has published it, may
    not have left yet, and behind it the key is reserved.
    """
    return _reports(execution) or bool(execution.reserved)


def store_parked(execution: Execution, key: str) -> None:
    """The task is about to wait for *key*: its result says so, with the key and since when."""
    if not _reports(execution):
        return
    task, request = execution.task, execution.request
    meta = {"key": key, "since": execution.history.since or time.time()}
    try:
        task.backend.store_result(request.id, meta, PARKED, request=request)
    except Exception:  # it waits all the same
        logger.exception("the state of %s could not be stored", request.id)


def store_retry(execution: Execution, error: BaseException) -> None:
    """A copy of the task is about to be published: its state is ``RETRY``, with the reason."""
    task, request = execution.task, execution.request
    if request.is_eager or (_ignores_result(execution) and not task.store_errors_even_if_ignored):
        return
    try:
        unasked = isinstance(error, BackendUnavailable | LimitUnknown)
        if not (unasked and _is_final(task, request.id)):
            trace = "".join(format_exception(error))
            task.backend.mark_as_retry(request.id, error, trace, request=request)
    except Exception:  # Celery will try it, too
        logger.exception("the state of %s could not be stored", request.id)
    else:
        setattr(request, RETRY_STORED, True)


def _is_final(task: Task, task_id: str) -> bool:
    """Whether it may be a duplicate, of a task that has ended: only the lock store could tell.

    Celery itself keeps a success, and writes over a failure. Results that are not kept, or are sent
    to the caller as messages, cannot be asked for here.
    """
    if isinstance(task.backend, DisabledBackend | RPCBackend):
        return False
    return task.backend.get_state(task_id) in READY_STATES


def store_revoked(execution: Execution) -> None:
    """The task was revoked while it waited: its result says so."""
    task, request = execution.task, execution.request
    task.backend.mark_as_revoked(
        request.id, "revoked", request=request, store_result=not _ignores_result(execution)
    )


def _reports(execution: Execution) -> bool:
    return bool(execution.task.track_started) and not _ignores_result(execution)


def _ignores_result(execution: Execution) -> bool:
    ignored = vars(execution.request).get("ignore_result")
    return bool(execution.task.ignore_result if ignored is None else ignored)


def skip_rest_of_chain(task: Task, request: Context, result: Mapping[str, Any]) -> None:
    """Complete every task that would follow in the chain of *request* with *result*; none runs."""
    rest = deque(request.chain or ())
    request.chain = None
    request.callbacks = None
    while rest:
        signature = rest.popleft()
        options = signature.get("options") or {}
        context = Context(signature)
        context.update(options)
        context.id = options.get("task_id")
        context.group = options.get("group_id")
        if context.id is not None:
            task.backend.mark_as_done(context.id, dict(result), request=context)
        rest.extend(_within(signature))


def _within(signature: Mapping[str, Any]) -> list[Any]:
    """The tasks of a canvas within a chain. A chord that has not begun counts none of them."""
    kwargs = signature.get("kwargs") or {}
    match signature.get("subtask_type"):
        case "chord":
            header = kwargs.get("header")
            members = header if isinstance(header, list) else [header]
            return [part for part in (*members, kwargs.get("body")) if part]
        case "group" | "chain":
            return list(kwargs.get("tasks") or ())
        case _:
            return []
