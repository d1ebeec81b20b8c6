"""When the entries of a schedule fall due: instants that every beat computes alike.

Celery's beat counts an interval from its own now, so two beats share no instant. Here the ticks of
an interval lie on a grid: the multiples of its length since 1970 (UTC). Of every other schedule a
tick is what it names as the next one after the last. All instants are in UTC.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid5

from celery import schedules
from celery.utils.time import maybe_make_aware

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: The name of the attribute of a schedule whose grid does not begin at :data:`EPOCH`.
ORIGIN = "dlock_origin"

_IDS = UUID("6d3a4f0e-5a0c-5d0b-9b0e-2f1c8a7d4e21")


@dataclass(frozen=True, slots=True)
class Tick:
    """What is to be sent for the instant *due*; *first* is the first missed one before it.

    *again* says that the leader before may have sent it.
    """

    due: datetime
    first: datetime | None = None
    again: bool = False


def tick_id(scope: str, entry: str, due: datetime) -> str:
    """The task id of a tick, the same whoever sends it and however often."""
    return str(uuid5(_IDS, "\0".join((scope, entry, due.isoformat()))))


def utc(instant: datetime) -> datetime:
    """*instant* in UTC; a naive one is UTC, as for Celery."""
    aware: datetime = maybe_make_aware(instant)
    return aware.astimezone(UTC)


def now_of(schedule: Any) -> datetime:
    """What *schedule* takes for now."""
    return utc(schedule.now())


def settled(schedule: Any, instant: datetime) -> datetime:
    """The last point of the grid up to *instant*; where there is no grid, *instant*."""
    every, origin = grid_of(schedule), getattr(schedule, ORIGIN, EPOCH)
    return origin + (instant - origin) // every * every if every else instant


def next_due(schedule: Any, last: datetime) -> datetime | None:
    """The first tick after *last*; ``None`` if there is none any more."""
    every = grid_of(schedule)
    if every:
        return settled(schedule, last) + every
    left: timedelta | None = None  # it may say whether it is due and nothing else
    # What is left until then, seen from then: Celery has no other word for an instant.
    with now_is(schedule, last), suppress(NotImplementedError):
        left = schedule.remaining_estimate(local(schedule, last))
    due = None if left is None else last + left
    return due if due is not None and due > last else None


def due_tick(schedule: Any, last: datetime, now: datetime) -> Tick | None:
    """What to send at *now* when all up to *last* is done with; ``None`` before the next tick."""
    first = next_due(schedule, last)
    if first is None or first > now:
        return None
    latest = _latest(schedule, first, now)
    return Tick(latest, first if latest > first else None)


def _latest(schedule: Any, first: datetime, now: datetime) -> datetime:
    """The last tick up to *now*, of which *first* is one.

    It is looked for in the last minute, then in the last two, and so on: after a long outage there
    may be very many of them.
    """
    if grid_of(schedule):
        return settled(schedule, now)
    window = timedelta(minutes=1)
    while now - window > first:
        late = next_due(schedule, now - window)
        if late is not None and late <= now:
            first = late
            break
        window *= 2
    while (following := next_due(schedule, first)) is not None and following <= now:
        first = following
    return first


def has_own_rules(schedule: Any, last: datetime, now: datetime) -> bool:
    """Whether by rules of its own it is due at *now*, an instant that it never named."""
    if grid_of(schedule):
        return False
    with now_is(schedule, now):
        return bool(schedule.is_due(local(schedule, last))[0])


def local(schedule: Any, instant: datetime) -> datetime:
    """*instant* as *schedule* wants it: in its time zone, which older versions of Celery rely on.

    An interval is better off without: those versions add an hour to it when the clocks change.
    """
    return instant if grid_of(schedule) else instant.astimezone(getattr(schedule, "tz", UTC))


@contextmanager
def now_is(schedule: Any, instant: datetime) -> Iterator[None]:
    """*schedule* takes *instant* for now."""
    before = schedule.nowfun
    schedule.nowfun = lambda: local(schedule, instant)
    try:
        yield
    finally:
        schedule.nowfun = before


def grid_of(schedule: Any) -> timedelta | None:
    """The length of the interval whose multiples are the ticks, if there is one."""
    plain = type(schedule) is schedules.schedule and not schedule.relative
    return schedule.run_every if plain and schedule.run_every > timedelta(0) else None
