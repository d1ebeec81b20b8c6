"""The log: what happened to the lock of a task, in one line each.

At INFO stands what became of each delivery, as Celery's own lines stand there, and that its lock is
uncertain; what went wrong is a warning. What only programs count, what is said elsewhere (a task
that times out fails, and Celery logs that) and what is said once a worker (that the store is
unavailable) is for debugging.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from celery_dlock.core.events import (
    LEAD,
    Confirmed,
    DeadLettered,
    Debounced,
    Deduplicated,
    Discarded,
    Dropped,
    Event,
    LeftToOthers,
    Lost,
    Parked,
    Rescheduled,
    Revoked,
    Skipped,
    StaleRejected,
    Subject,
    TickRepeated,
    TicksMissed,
    TooLarge,
    Uncertain,
    Woken,
    plain,
)

logger = logging.getLogger("celery_dlock")


def log(event: Event) -> None:
    """The sink that is always there."""
    course = _COURSE[type(event)](event) if type(event) in _COURSE else None
    wrong = _WRONG[type(event)](event) if course is None and type(event) in _WRONG else None
    level = logging.WARNING if wrong else logging.INFO if course else logging.DEBUG
    if logger.isEnabledFor(level):
        values = plain(event)
        text = wrong or course or _values(**values)
        logger.log(level, "%s %s", _whose(event), text, extra={"dlock": values})


def tells(level: int = logging.INFO) -> bool:
    """Whether anybody reads here what became of a delivery."""
    return logger.isEnabledFor(level)


def _whose(event: Event) -> str:
    if isinstance(event, TicksMissed):  # which no task ever had
        return f"Entry {event.subject.label!r} ({event.subject.task_name})"
    return _who(event.subject)


def _who(subject: Subject) -> str:
    """A task begins as in Celery's own lines."""
    name, task_id = subject.task_name, subject.task_id
    if task_id.startswith(f"{name}@"):  # code outside tasks, whose id says it all
        return task_id
    return f"{name}[{task_id}]" if name == LEAD else f"Task {name}[{task_id}]"


def _dropped(event: Dropped) -> str:
    return f"dropped at {event.key!r}: a duplicate, its task is already {event.reason}"


def _woken(event: Woken) -> str:
    if event.ending is not None:
        return f"woken from the queue of {event.key!r} to end: {event.ending}"
    wakes = "1 unanswered wake" if event.before == 1 else f"{event.before} unanswered wakes"
    again = f", after {wakes}" if event.before else ""
    return f"woken: its turn for {event.key!r} has come{again}"


def _readable(instant: str) -> str:
    return datetime.fromisoformat(instant).isoformat(" ", "seconds")


def _taken(event: Skipped) -> str:
    if event.holder is None:
        return f"{event.key!r} is reserved for a waiting task, or is cooling down"
    return f"{event.key!r} is held by {event.by or event.holder}"


def _behind(event: Parked) -> str:
    if event.hold:
        return f", which is on hold, by {event.hold}"
    if event.holder is None:
        return ", which is reserved for others"
    if event.holder == event.subject.task_id:
        return ": another delivery of it is running"
    return f", held by {event.by}"


def _rescheduled(event: Rescheduled) -> str:
    at = datetime.now() + timedelta(seconds=event.countdown)
    return f"rescheduled to {at:%H:%M:%S} ({event.countdown:.1f} s): {event.reason}"


def _dropped_as_a_surprise(event: Dropped) -> str:
    return (
        f"{_dropped(event)}. As far as can be known it was not redelivered: if it was published "
        "again on purpose, publish it under a new id"
    )


def _values(event: str, task_name: str, task_id: str, **rest: object) -> str:
    pairs = ", ".join(f"{name}={value!r}" for name, value in rest.items())
    return f"{event}: {pairs}"


_Sentence = Callable[[Any], str | None]

#: What became of a delivery, or of a call that was not published; and whether a lock is in doubt.
_COURSE: Mapping[type, _Sentence] = {
    Parked: lambda e: f"waits for {e.key!r}{_behind(e)}" if e.refused else None,
    Woken: _woken,
    Rescheduled: _rescheduled,
    Skipped: lambda e: f"skipped: {e.reason or _taken(e)}",
    Dropped: lambda e: _dropped(e) if e.repeated or e.reason != "done" else None,
    Revoked: lambda e: f"revoked while it waited for {e.key!r}",
    Discarded: lambda e: f"discarded by {e.by}: it was a dead letter at {e.key!r}",
    Lost: lambda e: (
        f"lost its lock on {e.key!r} as intended: {e.reason}" if e.newer is not None else None
    ),
    LeftToOthers: lambda e: f"left to the workers at {e.broker}: its turn for {e.key!r} has come",
    Deduplicated: lambda e: f"deduplicated: a duplicate of {e.living}, which lives as {e.claim!r}",
    Debounced: lambda e: f"debounced at {e.key!r}: {e.living} runs with the newest arguments",
    Uncertain: lambda e: (
        f"is uncertain of its lock on {e.key!r}, not renewed in time, "
        f"trusted for {e.left:.1f} s more"
    ),
    Confirmed: lambda e: f"is certain of its lock on {e.key!r} again",
}

#: What went wrong.
_WRONG: Mapping[type, _Sentence] = {
    Lost: lambda e: f"lost its lock on {e.key!r}: {e.reason}",
    StaleRejected: lambda e: f"was refused a late write to {e.resource!r} with token {e.mine}",
    Dropped: _dropped_as_a_surprise,
    DeadLettered: lambda e: f"became a dead letter at {e.key!r}: {e.cause}",
    TooLarge: lambda e: f"waits in the broker: {e.size} bytes are too many for the lock store",
    TickRepeated: lambda e: (
        f"is sent again for {_readable(e.due)}: a previous beat may have sent it or not"
    ),
    TicksMissed: lambda e: (
        f"skipped its ticks from {_readable(e.first)} and before {_readable(e.until)}: "
        "no beat sent them in time"
    ),
}
