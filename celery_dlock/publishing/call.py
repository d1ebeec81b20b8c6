"""One call of a task, where it is published: whether anything is to be asked before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from celery_dlock.locks.definition import TaskWithLock
from celery_dlock.messages.headers import identity, identity_as_sent
from celery_dlock.messages.unique import is_told
from celery_dlock.publishing.answer import Send
from celery_dlock.publishing.debounce import debounced_call
from celery_dlock.publishing.newest import newest_call
from celery_dlock.publishing.unique import unique_call


class Call(Protocol):
    """What is published with a question."""

    def publish(self, send: Send) -> Any:
        """The result of the task that is published, or of the one that lives."""
        ...


def call_of(
    task: TaskWithLock,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    task_id: str | None,
    options: Mapping[str, Any],
) -> Call | None:
    """The call of *task*, if it has to ask: what is published again has its claim, or had none."""
    definition = task.lock_definition
    if task.app.conf.task_always_eager or is_told(options.get("headers"), task_id, task.name):
        return None
    if definition.debounce is not None:
        return debounced_call(task, definition.debounce, args, kwargs, task_id, options)
    if definition.unique is None:
        return None
    if task_id is not None and identity_as_sent(task_id, options) == identity(task.request):
        return None
    calls = newest_call if definition.unique.options.newest_wins else unique_call
    return calls(task, definition.unique, args, kwargs, task_id, options)
