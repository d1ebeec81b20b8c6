"""The log: what happened to the lock of a task, in one line each."""

from __future__ import annotations

import logging

from celery_dlock.core.events import LEAD, Dropped, Event, TicksMissed, plain

logger = logging.getLogger("celery_dlock")

#: About a duplicate of a finished task that nobody is known to have sent again.
_ADVICE = (
    ". As far as can be known it was not redelivered: if it was published again on purpose, "
    "publish it under a new id"
)


def log(event: Event) -> None:
    """The sink that is always there."""
    level = event.log_level()
    if logger.isEnabledFor(level):
        values = plain(event)
        text = _values(**values) if level == logging.DEBUG else event.sentence()
        if isinstance(event, Dropped) and level == logging.WARNING:
            text += _ADVICE
        logger.log(level, "%s %s", _subject_of(event), text, extra={"dlock": values})


def tells(level: int = logging.INFO) -> bool:
    """Whether the log has lines of this level."""
    return logger.isEnabledFor(level)


def _subject_of(event: Event) -> str:
    """The subject of the sentence; a task is named as in Celery's own lines."""
    name, task_id = event.subject.task_name, event.subject.task_id
    if isinstance(event, TicksMissed):  # which no task ever had
        return f"Entry {event.subject.label!r} ({name})"
    if task_id.startswith(f"{name}@"):  # code outside tasks, whose id says it all
        return task_id
    return f"{name}[{task_id}]" if name == LEAD else f"Task {name}[{task_id}]"


def _values(event: str, task_name: str, task_id: str, **rest: object) -> str:
    pairs = ", ".join(f"{name}={value!r}" for name, value in rest.items())
    return f"{event}: {pairs}"
