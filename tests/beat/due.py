"""When an entry falls due, worked out anew: the library is not asked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from celery import Celery
from celery.schedules import solar

from tests.services.beat_entries import Entry

#: Two answers of ephem to one question that was asked from two starts differ by less.
SAME_SUN = timedelta(seconds=5)

MINUTE = timedelta(minutes=1)


def due_instants(entry: Entry, after: datetime, until: datetime) -> list[datetime]:
    """All of them behind *after*, up to *until*."""
    if entry.every is not None:
        return list(_grid(entry.every, after, until))
    if entry.minute is not None:
        return list(_minutes(entry.minute, after, until))
    assert entry.solar is not None
    return list(_suns(solar(*entry.solar, app=Celery(set_as_current=False)), after, until))


def _grid(every: float, after: datetime, until: datetime) -> Iterator[datetime]:
    number = math.floor(after.timestamp() / every) + 1
    while (due := datetime.fromtimestamp(number * every, UTC)) <= until:
        yield due
        number += 1


def _minutes(pattern: str, after: datetime, until: datetime) -> Iterator[datetime]:
    due = after.replace(second=0, microsecond=0) + MINUTE
    while due <= until:
        if _matches(pattern, due.minute):
            yield due
        due += MINUTE


def _matches(pattern: str, minute: int) -> bool:
    """Of a crontab's field, ``*``, ``*/5`` and ``1,2,3``."""
    if pattern.startswith("*"):
        return minute % int(pattern[2:] or 1) == 0
    return minute in map(int, pattern.split(","))


def _suns(sun: solar, after: datetime, until: datetime) -> Iterator[datetime]:
    at = after
    while True:
        sun.nowfun = lambda now=at: now
        due = at + sun.remaining_estimate(at)
        if due > until:
            return
        if due - after > SAME_SUN:  # *after* may be one itself, as ephem said it then
            yield due
        at = due + MINUTE
