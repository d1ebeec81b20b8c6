"""Ending a chain early without leaving anything that waits for it.

A chain that simply is not continued would hang a chord whose header it stands in: the chord
waits for the chain's last task. Celery marks the rest of a chain when a task of it fails; this
does the same for one that is skipped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from celery.app.task import Context, Task


def stop_chain(task: Task, request: Context, result: Mapping[str, Any]) -> None:
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
