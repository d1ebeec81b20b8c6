"""What a call of a unique or debounced task is answered with, and who depends on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from celery_dlock.locks.definition import TaskWithLock

#: What says that somebody waits for this very task: a canvas, or who gave it its id.
_DEPENDS = frozenset({"link", "link_error", "chain", "chord", "group_id"})

#: Publishes the task under an id with headers, perhaps by an outbox or with other options, and
#: returns its result.
Send = Callable[..., Any]


def depended_on(task_id: str | None, options: Mapping[str, Any]) -> bool:
    """Whether somebody depends on the call itself, under its own id."""
    return task_id is not None or any(map(options.get, _DEPENDS))


def is_its_own(task_id: str | None, options: Mapping[str, Any]) -> bool:
    """Whether the call is neither to replace another nor to be replaced: so it is, too, where it
    says when it is to run.
    """
    return depended_on(task_id, options) or any(map(options.get, ("eta", "countdown")))


def answered(result: Any, *, duplicate: bool) -> Any:
    """*result*, which says whether it is that of another call."""
    if result is not None:  # a base class of the project's may return what it likes
        result.is_duplicate = duplicate
    return result


def result_under(task: TaskWithLock, task_id: str, options: Mapping[str, Any]) -> Any:
    """What a call with *options* is answered with that is published as *task_id*.

    As Celery's own, it waits for no result that is not kept.
    """
    result = task.app.AsyncResult(task_id, backend=task.backend, task_name=task.name)
    result.ignored = options.get("ignore_result", task.ignore_result)
    return result


def result_of_another(task: TaskWithLock, task_id: str, options: Mapping[str, Any]) -> Any:
    """As :func:`result_under`, of a message that another call has published.

    A result that is sent as a message comes to the publisher alone.
    """
    result = result_under(task, task_id, options)
    if task.app.conf.result_backend in ("rpc", "rpc://"):
        result.get = _never_comes
    return result


def _never_comes(*_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError(
        "this is a duplicate of a task that another call has published, and the result backend "
        "rpc:// sends the result to that caller only: use another backend, or use only the id"
    )
