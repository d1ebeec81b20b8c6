"""What is particular to rows of django-celery-beat, and to entries of RedBeat."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from celery_dlock.beat.records import Record
from celery_dlock.beat.ticks import ORIGIN, local, utc

_MOMENT = timedelta(microseconds=1)


def is_row(entry: Any) -> bool:
    """Whether *entry* is a row, which every beat reads from the same database."""
    return hasattr(entry, "model")


def is_one_off(entry: Any) -> bool:
    """Whether it is to be sent a single time."""
    return is_row(entry) and bool(entry.model.one_off)


def is_off(entry: Any) -> bool:
    """Whether it is shown and switched off, as RedBeat's are."""
    return getattr(entry, "enabled", True) is False


def is_over(entry: Any, known: Record) -> bool:
    """Whether it is to be sent a single time, and was, of which the database may not know."""
    if not is_one_off(entry) or known.next is not None:
        return False
    last = _last_run(entry)
    return last is None or last <= known.sent


def anchored(entry: Any) -> Any:
    """The schedule of *entry*; the first tick of a row is when it starts."""
    starts = _starts(entry)
    if starts is not None:
        setattr(entry.schedule, ORIGIN, starts)
    return entry.schedule


def stands(entry: Any, known: Record | None, met: bool) -> datetime:
    """Up to where the ticks of *entry* are done with, as it says itself and as is *known*.

    What it says counts if it was *met* in this lead: it may have been switched off, and on again
    just now. Before that it says when this beat has begun to lead.
    """
    said, starts = _last_run(entry), _starts(entry)
    if known is None:
        last = said or utc(entry.schedule.now())
    elif met and said is not None:
        last = max(known.sent, said)
    else:
        last = known.sent
    return last if starts is None else max(last, starts - _MOMENT)


def show_overdue(scheduler: Any, records: Mapping[str, Record], now: datetime) -> None:
    """Have RedBeat show what is overdue by the *records*. By its own count it may not be yet."""
    entries = scheduler.Entry
    if not hasattr(entries, "reschedule"):
        return
    for name, record in records.items():
        if record.next is not None and record.next <= now:
            with suppress(KeyError):  # it was deleted
                entry = entries.from_key(entries.generate_key(scheduler.app, name), scheduler.app)
                entry.reschedule(local(entry.schedule, record.sent))


def _last_run(entry: Any) -> datetime | None:
    return None if entry.last_run_at is None else utc(entry.last_run_at)


def _starts(entry: Any) -> datetime | None:
    starts = getattr(entry.model, "start_time", None) if is_row(entry) else None
    return None if starts is None else utc(starts)
