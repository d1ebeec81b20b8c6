"""The log: what happened to the lock of a task, in one line each.

What became of a delivery is at INFO, as Celery's own lines are, and so is a lock that is uncertain;
what went wrong is a warning. What only programs count, what is logged elsewhere (a task that times
out fails, and Celery logs that) and what is logged once a worker (that the store is unavailable) is
for debugging.
"""

from __future__ import annotations

import logging

from celery_dlock.core.events import (
    LEAD,
    Acquired,
    Contended,
    DeadLettered,
    Dropped,
    Event,
    Lost,
    Parked,
    Released,
    StaleRejected,
    TickRepeated,
    TickSent,
    TicksMissed,
    TimedOut,
    TooLarge,
    Unavailable,
    Unreserved,
    plain,
)
from celery_dlock.core.sentences import sentence

logger = logging.getLogger("celery_dlock")

#: What happens all the time, or is logged elsewhere.
_QUIET = (Acquired, Released, Contended, TimedOut, Unavailable, TickSent)

#: About a duplicate of a finished task that nobody is known to have sent again.
_ADVICE = (
    ". As far as can be known it was not redelivered: if it was published again on purpose, "
    "publish it under a new id"
)


def log(event: Event) -> None:
    """The sink that is always there."""
    level = logging.DEBUG if isinstance(event, _QUIET) else _level(event)
    if logger.isEnabledFor(level):
        values = plain(event)
        text = _values(**values) if level == logging.DEBUG else _sentence(values)
        if isinstance(event, Dropped) and level == logging.WARNING:
            text += _ADVICE
        logger.log(level, "%s %s", _subject_of(event), text, extra={"dlock": values})


def tells(level: int = logging.INFO) -> bool:
    """Whether anybody reads here what became of a delivery."""
    return logger.isEnabledFor(level)


def _level(event: Event) -> int:
    match event:
        case Parked():
            return logging.INFO if event.refused else logging.DEBUG
        case Lost():
            return logging.WARNING if event.newer is None else logging.INFO
        case Dropped():
            surprises = event.reason == "done" and not event.repeated
            return logging.WARNING if surprises else logging.INFO
        case StaleRejected() | DeadLettered() | TooLarge() | Unreserved():
            return logging.WARNING
        case TickRepeated() | TicksMissed():
            return logging.WARNING
        case _:
            return logging.INFO


def _subject_of(event: Event) -> str:
    """Whom the sentence is about; a task is named as in Celery's own lines."""
    name, task_id = event.subject.task_name, event.subject.task_id
    if isinstance(event, TicksMissed):  # which no task ever had
        return f"Entry {event.subject.label!r} ({name})"
    if task_id.startswith(f"{name}@"):  # code outside tasks, whose id says it all
        return task_id
    return f"{name}[{task_id}]" if name == LEAD else f"Task {name}[{task_id}]"


def _sentence(values: dict[str, object]) -> str:
    """What the history tells of the same event: a fence has a resource and a token of its own."""
    key, token = values.get("resource", values.get("key")), values.get("mine")
    return sentence(str(values["event"]), {**values, "key": key, "token": token})


def _values(event: str, task_name: str, task_id: str, **rest: object) -> str:
    pairs = ", ".join(f"{name}={value!r}" for name, value in rest.items())
    return f"{event}: {pairs}"
