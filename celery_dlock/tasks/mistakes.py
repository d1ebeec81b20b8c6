"""Mistakes about which Celery or Python would say nothing, or something misleading."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from celery import Task
from celery.local import Proxy

from celery_dlock.errors import ConfigurationError
from celery_dlock.locks.definition import OPTIONS, nearest_option
from celery_dlock.locks.foreign import refuse_foreign

#: The tasks of Celery that call another one for each item.
CALL_EACH = frozenset({"celery.map", "celery.starmap"})

#: What the options of a lock begin with where they are those of a task.
LOCK = "lock_"


def refuse_decorator(body: Any, keys: Sequence[object], options: Mapping[str, Any]) -> None:
    """Raise :exc:`~celery_dlock.ConfigurationError` for a wrong use of ``@locked_task``: over a
    task, with several keys, or with an option of ``LockedTask``.
    """
    if isinstance(body, Task | Proxy):
        raise ConfigurationError(
            f"{body.name} is a task already: remove its other decorator, and give its options to "
            "@locked_task, with app="
        )
    if "key" in options:
        keys = [*keys, options["key"]]
    if len(keys) > 1:
        raise ConfigurationError(
            f"task {body.__qualname__}: locked_task() takes one key; write several as a list, "
            f"{list(keys)!r}"
        )
    for name in options:
        if name.removeprefix(LOCK) in OPTIONS and name not in OPTIONS:
            raise ConfigurationError(
                f"task {body.__qualname__}: {name}= is for base=LockedTask; locked_task() takes "
                f"{name.removeprefix(LOCK)}="
            )


def refuse_each(task: str) -> NoReturn:
    """Raise :exc:`~celery_dlock.ConfigurationError`: Celery would call *task* for each item."""
    raise ConfigurationError(
        f"task {task}: map(), starmap() and chunks() call a task as a function, one item after the "
        "other, in one process. Such a call cannot wait for its key, and one key that is taken "
        "would end all that is left. Publish a group: group(task.s(item) for item in items)"
    )


def given_to_celery(task: type) -> Iterator[str]:
    """The options with which ``@app.task`` has made *task*, but for ours and those of its bases."""
    if "_decorated" in vars(task):
        attributes = {name for base in task.__mro__[1:] for name in vars(base)}
        attributes.update(LOCK + option for option in OPTIONS)
        yield from (n for n in vars(task) if n not in attributes and not n.startswith("_"))


def refuse_coroutine(task: str, body: Callable[..., Any]) -> None:
    """Raise :exc:`~celery_dlock.ConfigurationError` if *body* is a coroutine: Celery runs none."""
    if inspect.iscoroutinefunction(inspect.unwrap(body)):
        raise ConfigurationError(
            f"task {task}: Celery awaits nothing, so the body would not run: make it a plain "
            "function that calls asyncio.run()"
        )


def refuse_strategy(task: str, task_class: type, locked: type) -> None:
    """Raise :exc:`~celery_dlock.ConfigurationError` if *task_class* or a base of it, other than
    *locked*, has its own strategy for messages: they would run without a lock, or in another way.
    """
    for base in task_class.__mro__:
        has_strategy = vars(base).get("Strategy", Task.Strategy) != Task.Strategy
        if base not in (locked, Task) and (has_strategy or "start_strategy" in vars(base)):
            raise ConfigurationError(
                f"task {task}: {base.__name__} has a Strategy of its own, which decides what a "
                "worker does with messages, and a lock for each message does not go with it. Keep "
                "the task without a lock, and use `with lock(...)` in its body"
            )


def refuse_misspelt_attribute(task: type, name: str, locked: type) -> None:
    """Raise :exc:`~celery_dlock.ConfigurationError` for an attribute of *task* or of a base that is
    nearly an option, and of one that is *locked* also for another library's.

    The class that an application gives to all its tasks may have those of another lock.
    """
    for base in task.__mro__:
        names = vars(base).keys() - vars(locked).keys()
        for attribute in sorted(each for each in names if each.startswith(LOCK)):
            if issubclass(base, locked):
                refuse_foreign(f"task {name}", [attribute], LOCK)
            if meant := nearest_option(attribute.removeprefix(LOCK), OPTIONS, LOCK):
                of = "" if base is task else f" (It is an attribute of {base.__name__}.)"
                raise ConfigurationError(
                    f"task {name}: {attribute}= is no option; did you mean {meant}?{of}"
                )


def refuse_without_prefix(task: type, name: str) -> None:
    """Raise :exc:`~celery_dlock.ConfigurationError` for ``@app.task(base=LockedTask, key=…)``."""
    for option in given_to_celery(task):
        if option in OPTIONS:
            raise ConfigurationError(
                f"task {name}: {option}= is for @locked_task; with base=LockedTask write "
                f"{LOCK}{option}="
            )
