"""One event of each kind, about one task."""

from __future__ import annotations

from typing import get_args

from celery_dlock.core.events import (
    Acquired,
    Confirmed,
    Contended,
    DeadLettered,
    Debounced,
    Deduplicated,
    Discarded,
    Dropped,
    Event,
    LeftToOthers,
    Lost,
    Parked,
    Released,
    Rescheduled,
    Revoked,
    Skipped,
    StaleRejected,
    Subject,
    TickRepeated,
    TickSent,
    TicksMissed,
    TimedOut,
    TooLarge,
    Unavailable,
    Uncertain,
    Woken,
)

KEY, TASK_ID, HOLDER = "order:4711", "f7ba-the-id", "who-has-it"


def acquired(subject: Subject, **fields: float) -> Acquired:
    return Acquired(subject, (KEY,), (7,), **{"took": 0.004, "ttl": 30.0, **fields})


def released(subject: Subject, held: float = 1.5) -> Released:
    return Released(subject, (KEY,), "done", held)


def about(task: str = "charge") -> Subject:
    return Subject(TASK_ID, task, "order:{order_id}")


def one_of_each(subject: Subject) -> list[Event]:
    """All of the union; a kind that is missing here is an error."""
    events: list[Event] = [
        acquired(subject, waited=2.0, since_woken=0.01),
        Contended(subject, KEY, HOLDER, 0, 0.0),
        Rescheduled(subject, f"{KEY} is held", 1.0),
        Parked(subject, KEY, refused=True),
        Woken(subject, KEY, None),
        LeftToOthers(subject, KEY, "redis://elsewhere:6379/0"),
        TooLarge(subject, 10_000_000),
        Revoked(subject, KEY),
        DeadLettered(subject, KEY, "unknown"),
        Discarded(subject, KEY, "ann@desk"),
        Skipped(subject, KEY, HOLDER),
        Dropped(subject, KEY, "done"),
        Deduplicated(subject, "charge(42)", HOLDER),
        Debounced(subject, "debounced|charge(42)", HOLDER),
        TimedOut(subject, KEY, 3.0),
        released(subject),
        Lost(subject, KEY, f"{KEY} has lapsed"),
        Uncertain(subject, KEY, 14.7),
        Confirmed(subject, KEY),
        StaleRejected(subject, KEY, 7),
        Unavailable(subject, "it did not answer"),
        TickSent(subject, "2026-01-01T00:00:00Z"),
        TickRepeated(subject, "2026-01-01T00:00:00Z"),
        TicksMissed(subject, "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"),
    ]
    missing = set(get_args(Event)) - set(map(type, events))
    assert not missing, f"{missing} is to be told here, too"
    return events
