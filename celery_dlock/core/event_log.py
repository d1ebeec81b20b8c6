"""The log: what happened to the lock of a task, in one line each.

At INFO stands what became of each delivery, as Celery's own lines stand there, and that its lock is
uncertain; what went wrong is a warning. What only programs count, what is said elsewhere (a task
that times out fails, and Celery logs that) and what is said once a worker (that the store is
unavailable) is for debugging.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from celery_dlock.core.events import (
    LEAD,
    Confirmed,
    DeadLettered,
    Debounced,
    Deduplicated,
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
    course = _course(event) or _call(event) or _doubt(event)
    wrong = None if course else _wrong(event)
    level = logging.WARNING if wrong else logging.INFO if course else logging.DEBUG
    if logger.isEnabledFor(level):
        values = plain(event)
        text = wrong or course or _values(**values)
        logger.log(level, "%s %s", _who(event.subject), text, extra={"dlock": values})


def tells(level: int = logging.INFO) -> bool:
    """Whether anybody reads here what became of a delivery."""
    return logger.isEnabledFor(level)


def _who(subject: Subject) -> str:
    """A task begins as in Celery's own lines."""
    name, task_id = subject.task_name, subject.task_id
    if task_id.startswith(f"{name}@"):  # code outside tasks, whose id says it all
        return task_id
    return f"{name}[{task_id}]" if name == LEAD else f"Task {name}[{task_id}]"


def _course(event: Event) -> str | None:
    """What became of a delivery."""
    match event:
        case Parked(refused=True):
            return f"waits for {event.key!r}{_behind(event)}"
        case Woken():
            return _woken(event)
        case Rescheduled():
            at = datetime.now() + timedelta(seconds=event.countdown)
            return f"rescheduled to {at:%H:%M:%S} ({event.countdown:.1f} s): {event.reason}"
        case Skipped():
            return f"skipped: {event.reason or _taken(event)}"
        case Dropped():
            return f"dropped at {event.key!r}: a duplicate, its task is already {event.reason}"
        case Revoked():
            return f"revoked while it waited for {event.key!r}"
        case Lost(newer=str()):
            return f"lost its lock on {event.key!r} as intended: {event.reason}"
        case LeftToOthers():
            return f"left to the workers at {event.broker}: its turn for {event.key!r} has come"
        case _:
            return None


def _call(event: Event) -> str | None:
    """What a call came to that was not published."""
    match event:
        case Deduplicated():
            return f"deduplicated: a duplicate of {event.living}, which lives as {event.claim!r}"
        case Debounced():
            return f"debounced at {event.key!r}: {event.living} runs with the newest arguments"
        case _:
            return None


def _doubt(event: Event) -> str | None:
    """Whether the lock is as it should be, while the body runs."""
    match event:
        case Uncertain():
            left = f"trusted for {event.left:.1f} s more"
            return f"is uncertain of its lock on {event.key!r}, not renewed in time, {left}"
        case Confirmed():
            return f"is certain of its lock on {event.key!r} again"
        case _:
            return None


def _wrong(event: Event) -> str | None:
    match event:
        case Lost():
            return f"lost its lock on {event.key!r}: {event.reason}"
        case StaleRejected():
            return f"was refused a late write to {event.resource!r} with token {event.mine}"
        case DeadLettered():
            return f"became a dead letter at {event.key!r}: {event.cause}"
        case TooLarge():
            return f"waits in the broker: {event.size} bytes are too many for the lock store"
        case TickRepeated():
            return f"is sent again for {event.due}: a previous beat may have sent it or not"
        case TicksMissed():
            return f"has missed its ticks from {event.first} until {event.until}"
        case _:
            return None


def _woken(event: Woken) -> str:
    if event.ending is not None:
        return f"woken from the queue of {event.key!r} to end: {event.ending}"
    wakes = "wake" if event.before == 1 else "wakes"
    again = f", after {event.before} unanswered {wakes}" if event.before else ""
    return f"woken: its turn for {event.key!r} has come{again}"


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


def _values(event: str, task_name: str, task_id: str, **rest: object) -> str:
    told = ", ".join(f"{name}={value!r}" for name, value in rest.items())
    return f"{event}: {told}"
