"""The schedule of the tests: intervals, crontabs and suns, half of them locked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from celery import Celery
from celery.schedules import solar

from tests.services.beat_entries import Entry

#: When it is for the beats as they start.
BASE = datetime(2026, 6, 1, 12, 0, 17, tzinfo=UTC)

#: Minutes after :data:`BASE`, what the sun does then, and the kind of task.
SUNS = (
    (4, "sunset", "locked"),
    (6, "solar_noon", "plain"),
    (8, "sunrise", "locked"),
    (10, "dusk_civil", "plain"),
    (13, "sunset", "locked"),
    (16, "sunrise", "plain"),
    (20, "solar_noon", "locked"),
)

LATITUDE = 48.0

#: Seconds in which the sun passes a degree of longitude.
DEGREE = 240.0


def _sun(minutes: int, event: str, task: str) -> Entry:
    due = BASE + timedelta(minutes=minutes)
    where = (event, LATITUDE, _longitude(event, due))
    return Entry(f"{event} after {minutes} min", task, solar=where)


def _longitude(event: str, due: datetime) -> float:
    """Where the sun does that at *due*, or within some seconds of it."""
    app = Celery(set_as_current=False)
    before = due - timedelta(minutes=2)
    longitude = 0.0
    for _ in range(4):
        sun = solar(event, LATITUDE, longitude, app=app, nowfun=lambda: before)
        too_late = sun.remaining_estimate(before) - (due - before)
        longitude += too_late.total_seconds() / DEGREE
        longitude = (longitude + 180) % 360 - 180
    return round(longitude, 3)


ENTRIES = (
    Entry("every 40 s", "locked", every=40),
    Entry("every 60 s", "plain", every=60),
    Entry("every 90 s", "locked", every=90),
    Entry("each minute", "plain", minute="*"),
    Entry("each second minute", "locked", minute="*/2"),
    *(_sun(*each) for each in SUNS),
)
