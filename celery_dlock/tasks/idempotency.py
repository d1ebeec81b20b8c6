"""One key for one effect of one task, however often it is delivered, for providers that honour it.

It is made from what redelivery, rescheduling, the queue and ``retry()`` leave as it is: the task's
id, and how often it was replaced, because ``replace()`` puts another task under the same id.
"""

from __future__ import annotations

import json
import uuid

from celery._state import _task_stack
from celery.app.task import Context

from celery_dlock.errors import ConfigurationError

_NAMESPACE = uuid.UUID("5c1f64ba-2a4e-5d0f-9a3c-6e2b8d0f7a11")


def idempotency_key(effect: str) -> str:
    """An idempotency key for one *effect* of the running task: a UUID of 36 characters.

    It is the same in every run of the task, and differs for another task or effect. A task that a
    body runs eagerly has a new id each time, and so a new key. A task that a body calls like a
    function has the keys of that body.

    Raises :exc:`~celery_dlock.ConfigurationError` outside a task's body, in a task that is called
    like a function outside of any other (it has no id; ``pay.apply(args)`` has one), in a thread
    that the body started, and for an empty *effect*.
    """
    if not isinstance(effect, str) or not effect:
        raise ConfigurationError(f"the name of an effect is a non-empty str, got {effect!r}")
    request = _delivered_request()
    if request is None:
        raise ConfigurationError(
            "no task with an id runs here: idempotency_key() works in the body of a task. A direct "
            "call has no task id: call it with pay.apply(args), where pay is the task. Pass the "
            "key to threads that the body starts; elsewhere make a key from your own data"
        )
    name = json.dumps([str(request.id), request.replaced_task_nesting or 0, effect])
    return str(uuid.uuid5(_NAMESPACE, name))


def _delivered_request() -> Context | None:
    """The request of the running task; None for a task that is only called like a function."""
    for task in reversed(_task_stack.stack):
        for request in reversed(task.request_stack.stack):
            if request.id:
                return request
    return None
