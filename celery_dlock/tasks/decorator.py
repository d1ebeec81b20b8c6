"""``@locked_task``: makes a task of a body, from the class that its application gives to tasks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, Literal, Protocol, Unpack, overload

from celery import Celery, Task, shared_task
from celery.local import Proxy

from celery_dlock.core.access import Wanted
from celery_dlock.locks.definition import OPTIONS, Definition, refuse_misspelt
from celery_dlock.locks.foreign import refuse_foreign
from celery_dlock.tasks.mistakes import LOCK, given_to_celery, refuse_decorator, refuse_strategy
from celery_dlock.tasks.task import LockedTask
from celery_dlock.tasks.typed import (
    AsksForLease,
    AsksForToken,
    GivenLease,
    GivenToken,
    Rest,
    Result_co,
    TaskOptions,
)


class _OfApplication(type):
    """Makes each task from the class that its application gives to tasks, with a lock in front.

    The class is known only when the application makes its tasks: ``app.Task`` may be assigned until
    then, and a shared task is made once for each application
    (``docs/decisions/0061-a-task-has-the-class-of-its-application.rst``).
    """

    def __new__(mcs, name: str, _bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        of_app = namespace["app"].Task
        bases = (of_app,) if issubclass(of_app, LockedTask) else (LockedTask, of_app)
        task = type(name, bases, namespace)
        refuse_misspelt(namespace["name"], given_to_celery(task))
        return task


#: The base of a task without a ``base``: stands for the class of its application.
_APP_TASK = type.__new__(_OfApplication, "AppTask", (LockedTask,), {})


class Decorator(Protocol):
    """What makes a task of a body."""

    @overload
    def __call__(
        self, body: GivenToken[Rest, Result_co] | GivenLease[Rest, Result_co], /
    ) -> LockedTask[Rest, Result_co]: ...
    @overload
    def __call__(
        self, body: AsksForToken[Result_co] | AsksForLease[Result_co], /
    ) -> LockedTask[..., Result_co]: ...
    @overload
    def __call__(self, body: Callable[Rest, Result_co], /) -> LockedTask[Rest, Result_co]: ...


class BoundDecorator(Protocol):
    """What makes a task of a body whose first parameter is the task."""

    @overload
    def __call__(
        self,
        body: GivenToken[Concatenate[Any, Rest], Result_co]
        | GivenLease[Concatenate[Any, Rest], Result_co],
        /,
    ) -> LockedTask[Rest, Result_co]: ...
    @overload
    def __call__(
        self, body: AsksForToken[Result_co] | AsksForLease[Result_co], /
    ) -> LockedTask[..., Result_co]: ...
    @overload
    def __call__(
        self, body: Callable[Concatenate[Any, Rest], Result_co], /
    ) -> LockedTask[Rest, Result_co]: ...


Body = Callable[..., Any]


@overload
def locked_task(
    body: GivenToken[Rest, Result_co] | GivenLease[Rest, Result_co], /
) -> LockedTask[Rest, Result_co]: ...
@overload
def locked_task(
    body: AsksForToken[Result_co] | AsksForLease[Result_co], /
) -> LockedTask[..., Result_co]: ...
@overload
def locked_task(body: Callable[Rest, Result_co], /) -> LockedTask[Rest, Result_co]: ...
@overload
def locked_task(
    key: Wanted | Sequence[Wanted] | None = None,
    *,
    bind: Literal[True],
    app: Any = None,
    **options: Unpack[TaskOptions],
) -> BoundDecorator: ...
@overload
def locked_task(
    key: Wanted | Sequence[Wanted] | None = None,
    *,
    bind: Literal[False] = False,
    app: Any = None,
    **options: Unpack[TaskOptions],
) -> Decorator: ...
def locked_task(*args: Any, **options: Any) -> Any:
    """Make a task that takes a lock before its body runs.

    *key* is a template over the task's parameters (``"order:{order_id}"``) or a callable with the
    task's signature: a key that the task holds alone. A :class:`~celery_dlock.Limit` lets several
    tasks hold their key at once, or keeps it closed for a time after each start; a
    :class:`~celery_dlock.Shared` is for reading, and beside another key it is a parent of that one:
    who holds it alone waits for the task, and the task for them. A list takes several of these.
    Give a callable as ``key=…``, because a function alone is taken for the body of a bare
    ``@locked_task``. Without a key the task locks its own name.

    *ttl* is the length of the lease in seconds. The lease is renewed while the body runs, at most
    for the hard time limit. *on_contention* is a policy or its name. *on_lost* says what happens
    when the lease is lost while the body runs: ``"abort"`` raises :exc:`~celery_dlock.LockLost` in
    the body, ``"flag"`` lets it go on, and the body can check its lease.

    With *unique* a call is not published while a task lives that does the same: until that task is
    ``"done"``, until its ``"start"``, or as a :class:`~celery_dlock.Unique` says. A
    :class:`~celery_dlock.Debounce` delays calls instead. *reserve* keeps the task's keys for its
    next attempt (``"retry"``), or for that and the next step of its chain (``"chain"``): nobody
    else of the keys runs in between. Without *app* it is a ``shared_task``. Like every task it has
    the class that its application gives to tasks, unless there is a *base*; options that are not
    given here may be set there, with the prefix ``lock_``. All other options are Celery's own.

    A body may declare ``fencing_token`` or ``lease`` as a keyword-only parameter, for example
    ``fencing_token: int = INJECTED``. It is passed in, and type checkers know that callers leave it
    out.

    Raises :exc:`~celery_dlock.ConfigurationError` at once for a wrong key or option; of a shared
    task, for a misspelt one when an application makes the task, as its class may know the name.
    """
    if len(args) == 1 and not options and _is_body(args[0]):
        return _make(args[0])

    def decorate(body: Body) -> LockedTask:
        refuse_decorator(body, args, options)
        return _make(body, *args, **options)

    return decorate


def _is_body(value: object) -> bool:
    if isinstance(value, Task | Proxy):
        refuse_decorator(value, (), {})
    return inspect.isfunction(value) and value.__name__ != "<lambda>"


def _make(body: Body, *key: Any, app: Any = None, **task_options: Any) -> LockedTask:
    """The task of *body*. Options of its lock that are not given may come from its class."""
    if key:
        task_options["key"] = key[0]
    options = {name: task_options.pop(name) for name in OPTIONS if name in task_options}
    bound = bool(task_options.get("bind"))
    name = task_options.get("name") or body.__qualname__
    Definition.of(body, bound=bound, name=name, **options)  # wrong ones end here
    # Celery's app.task has an option of that name, and may take it before it is checked below.
    refuse_foreign(f"task {name}", task_options.keys() & {"shared"})
    base = task_options.pop("base", None)
    behind = base or (app and vars(app).get("Task", app.task_cls))
    if behind == Celery.task_cls:
        behind = Task
    if isinstance(behind, type):  # else _OfApplication checks, once the class is known
        names = (o for o in task_options if not (hasattr(LockedTask, o) or hasattr(behind, o)))
        refuse_misspelt(name, names)
    if base is None:
        base = _APP_TASK
    else:
        refuse_strategy(name, base, LockedTask)
    if not issubclass(base, LockedTask):
        base = type(f"Locked{base.__name__}", (LockedTask, base), {"abstract": True})
    create = shared_task if app is None else app.task
    task: LockedTask = create(
        base=base,
        **{f"{LOCK}{option}": value for option, value in options.items()},
        **task_options,
    )(body)
    return task
