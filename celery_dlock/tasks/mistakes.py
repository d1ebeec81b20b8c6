"""What people write by mistake, where Celery or Python would say nothing, or something else."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from celery import Task
from celery.local import Proxy

from celery_dlock.errors import ConfigurationError
from celery_dlock.locks.definition import OPTIONS

#: The tasks of Celery that call another one for each item.
CALL_EACH = frozenset({"celery.map", "celery.starmap"})

#: What the options of a lock begin with where they are those of a task.
LOCK = "lock_"


def refuse_decorator(body: Any, keys: Sequence[object], options: Mapping[str, Any]) -> None:
    """Raise :exc:`~celery_dlock.ConfigurationError` for a use of ``@locked_task`` that cannot be
    meant: over a task, with several keys, or with an option of ``LockedTask``.
    """
    if isinstance(body, Task | Proxy):
        raise ConfigurationError(
            f"{body.name} is a task already: remove its other decorator, and give its options to "
            "@locked_task, with app="
        )
    listed = [*keys, *(options[name] for name in ("key",) if name in options)]
    if len(listed) > 1:
        raise ConfigurationError(
            f"task {body.__qualname__}: locked_task() takes one key; write several as a list, "
            f"{listed!r}"
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
        known = {name for base in task.__mro__[1:] for name in vars(base)}
        known.update(LOCK + option for option in OPTIONS)
        yield from (name for name in vars(task) if name not in known and not name.startswith("_"))


def refuse_coroutine(task: str, body: Callable[..., Any]) -> None:
    """Raise :exc:`~celery_dlock.ConfigurationError` if Celery would make *body* and not run it."""
    if inspect.iscoroutinefunction(inspect.unwrap(body)):
        raise ConfigurationError(
            f"task {task}: Celery awaits nothing, so the body would not run: make it a plain "
            "function that calls asyncio.run()"
        )


def refuse_strategy(task: str, made: type, locked: type) -> None:
    """Raise :exc:`~celery_dlock.ConfigurationError` if a class of *made*, but for *locked*, has a
    way of its own to take messages in: its messages would run without a lock, or not its way.
    """
    for base in made.__mro__:
        own = vars(base).get("Strategy", Task.Strategy) != Task.Strategy
        if base not in (locked, Task) and (own or "start_strategy" in vars(base)):
            raise ConfigurationError(
                f"task {task}: {base.__name__} has a Strategy of its own, which decides what a "
                "worker does with messages, and a lock for each message does not go with it. Keep "
                "the task without a lock, and use `with lock(...)` in its body"
            )


def libraries_of(task: type) -> set[str]:
    """The packages that the bases of *task* are from, as pip calls them."""
    return {base.__module__.partition(".")[0].replace("_", "-") for base in task.__mro__}


def refuse_without_prefix(task: type, name: str) -> None:
    """Raise :exc:`~celery_dlock.ConfigurationError` for ``@app.task(base=LockedTask, key=…)``."""
    for option in given_to_celery(task):
        if option in OPTIONS:
            raise ConfigurationError(
                f"task {name}: {option}= is for @locked_task; with base=LockedTask write "
                f"{LOCK}{option}="
            )
