"""One key for one effect of one task, however often it is delivered: for providers that honour it.

Made of what stays the same over redelivery, rescheduling, the queue and ``retry()``: the task's id,
and how often it was replaced, because ``replace()`` puts another task under the same id.
"""

from __future__ import annotations

import json
import uuid

from celery._state import _task_stack
from celery.app.task import Context

from celery_dlock.errors import ConfigurationError

_NAMESPACE = uuid.UUID("5c1f64ba-2a4e-5d0f-9a3c-6e2b8d0f7a11")


def idempotency_key(effect: str) -> str:
    """The key that the running task sends along with its *effect*: 36 characters, a UUID.

    The same in every run of the same task, another one for another task or effect. In a task that
    a body runs eagerly it is made of that task's id, which is a new one each time; one that is
    called like a function has none of its own, and the keys of the body that calls it.

    Raises :exc:`~celery_dlock.ConfigurationError` outside a task's body, in a thread that the body
    started, and for an empty *effect*.
    """
    if not isinstance(effect, str) or not effect:
        raise ConfigurationError(f"the effect is named by a text, got {effect!r}")
    request = _delivered()
    if request is None:
        raise ConfigurationError(
            "no task runs here: idempotency_key() works in the body of a task; hand the key to "
            "threads that the body starts, and elsewhere make one of your own data"
        )
    name = json.dumps([str(request.id), request.replaced_task_nesting or 0, effect])
    return str(uuid.uuid5(_NAMESPACE, name))


def _delivered() -> Context | None:
    """The request of the running task. A task that is only called, like a function, has none."""
    for task in reversed(_task_stack.stack):
        for request in reversed(task.request_stack.stack):
            if request.id:
                return request
    return None
