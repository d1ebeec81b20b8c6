"""``@locked_task``: a Celery task and its lock in one line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, overload

from celery import Celery, shared_task

from celery_dlock.contention import Policy
from celery_dlock.core.keys import Key
from celery_dlock.errors import ConfigurationError
from celery_dlock.tasks.definition import Definition, OnLost, refuse_misspelt
from celery_dlock.tasks.task import LockedTask

Body = Callable[..., Any]

#: What ``Celery(task_cls=…)`` is when nobody has set it.
DEFAULT_TASK = Celery.task_cls


@overload
def locked_task(body: Body, /) -> LockedTask: ...
@overload
def locked_task(
    key: Key | Sequence[Key] | None = None,
    *,
    app: Any = None,
    ttl: float | None = None,
    on_contention: str | Policy | None = None,
    limit: int = 1,
    shared: bool = False,
    max_hold: float | None = None,
    parents: Key | Sequence[Key] = (),
    on_lost: OnLost = "flag",
    **task_options: Any,
) -> Callable[[Body], LockedTask]: ...
def locked_task(*bare: Any, **options: Any) -> LockedTask | Callable[[Body], LockedTask]:
    """Make a task that takes a lock before its body runs.

    *key* is a template over the task's parameters (``"order:{order_id}"``), a callable with the
    task's signature (as ``key=…``: a named function alone is taken for the body of a bare
    ``@locked_task``), or a list of either; without it the task locks on its own name. *ttl* is the
    length of the lease in seconds, renewed while the body runs; *max_hold* bounds that, in
    seconds. *on_contention* is a policy or the name of one. *limit* lets that many hold the key at
    once; *shared* makes it a read lock. *parents* are keys, written like *key*, that the task holds
    for reading: whoever takes one of them exclusively waits for the task and holds it off. With
    *on_lost* ``"abort"`` a body whose lease is lost gets :exc:`~celery_dlock.LockLost` raised in
    it; with ``"flag"`` it goes on, and may ask. Without *app* it is a ``shared_task``. All other
    options are Celery's own.

    A body that wants them declares ``fencing_token`` or ``lease`` as keyword-only parameters.

    Raises :exc:`~celery_dlock.ConfigurationError` here and now when something does not fit.
    """
    if len(bare) == 1 and not options and _is_body(bare[0]):
        return _make(bare[0])
    return lambda body: _make(body, *bare, **options)


def _is_body(function: object) -> bool:
    return inspect.isfunction(function) and function.__name__ != "<lambda>"


def _make(
    body: Body,
    key: Key | Sequence[Key] | None = None,
    *,
    app: Any = None,
    ttl: float | None = None,
    on_contention: str | Policy | None = None,
    limit: int = 1,
    shared: bool = False,
    max_hold: float | None = None,
    parents: Key | Sequence[Key] = (),
    on_lost: OnLost = "flag",
    **task_options: Any,
) -> LockedTask:
    options: dict[str, Any] = {
        "ttl": ttl,
        "on_contention": on_contention,
        "limit": limit,
        "shared": shared,
        "max_hold": max_hold,
        "parents": parents,
        "on_lost": on_lost,
    }
    bound = bool(task_options.get("bind"))
    name = task_options.get("name") or body.__qualname__
    Definition.of(body, bound=bound, name=name, key=key, **options)  # wrong ones end here
    # The application's own task class has what its tasks rely on: Flask's context, Django's hooks.
    usual = LockedTask if app is None or app.task_cls == DEFAULT_TASK else app.Task
    base = task_options.pop("base", None) or usual
    if base is LockedTask and inspect.iscoroutinefunction(body):
        raise ConfigurationError(
            f"task {name}: Celery awaits nothing, so the body would not run; let it be a plain "
            "function that calls asyncio.run()"
        )
    known = (LockedTask, base)
    refuse_misspelt(name, (o for o in task_options if not any(hasattr(k, o) for k in known)))
    if not issubclass(base, LockedTask):
        base = type(f"Locked{base.__name__}", (LockedTask, base), {"abstract": True})
    create = shared_task if app is None else app.task
    task: LockedTask = create(
        base=base,
        lock_key=key,
        **{f"lock_{option}": value for option, value in options.items()},
        **task_options,
    )(body)
    return task
