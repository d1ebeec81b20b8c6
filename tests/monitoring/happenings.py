"""One event of each kind, about one task."""

from __future__ import annotations

from typing import get_args

from celery_dlock.core import events
from celery_dlock.core.events import Acquired, Event, Released, Subject

KEY, TASK_ID, HOLDER = "order:4711", "f7ba-the-id", "who-has-it"


def acquired(subject: Subject, **fields: float) -> Acquired:
    return Acquired(subject, (KEY,), (7,), **{"took": 0.004, "ttl": 30.0, **fields})


def released(subject: Subject, held: float = 1.5) -> Released:
    return Released(subject, (KEY,), "done", held)


def about(task: str = "charge") -> Subject:
    return Subject(TASK_ID, task, "order:{order_id}")


def one_of_each(subject: Subject) -> list[Event]:
    """All of the union; a kind that is missing here is an error."""
    happened: list[Event] = [
        acquired(subject, waited=2.0, since_woken=0.01),
        events.Contended(subject, KEY, HOLDER, 0, 0.0),
        events.Rescheduled(subject, f"{KEY} is held", 1.0),
        events.Parked(subject, KEY, refused=True),
        events.Woken(subject, KEY, None),
        events.Unreserved(subject, KEY, "customer:7"),
        events.LeftToOthers(subject, KEY, "redis://elsewhere:6379/0"),
        events.TooLarge(subject, 10_000_000),
        events.Revoked(subject, KEY),
        events.DeadLettered(subject, KEY, "unknown"),
        events.Discarded(subject, KEY, "ann@desk"),
        events.Skipped(subject, KEY, HOLDER),
        events.Dropped(subject, KEY, "done"),
        events.Deduplicated(subject, "charge(42)", HOLDER),
        events.Debounced(subject, "debounced|charge(42)", HOLDER),
        events.TimedOut(subject, KEY, 3.0),
        released(subject),
        events.Lost(subject, KEY, f"{KEY} has lapsed"),
        events.Uncertain(subject, KEY, 14.7),
        events.Confirmed(subject, KEY),
        events.StaleRejected(subject, KEY, 7),
        events.Unavailable(subject, "it did not answer"),
        events.TickSent(subject, "2026-01-01T00:00:00Z"),
        events.TickRepeated(subject, "2026-01-01T00:00:00Z"),
        events.TicksMissed(subject, "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"),
    ]
    missing = set(get_args(Event)) - set(map(type, happened))
    assert not missing, f"{missing} is to be told here, too"
    return happened
