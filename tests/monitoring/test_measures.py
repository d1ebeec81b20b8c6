"""What is measured by each event."""

from __future__ import annotations

import pytest

from celery_dlock.core.events import Contended, Event, Lost, Parked, Woken
from celery_dlock.monitoring.measures import (
    ACQUISITION,
    HOLD,
    MEASURES,
    SINCE_WOKEN,
    measurements,
)
from celery_dlock.settings import Settings
from tests.monitoring.happenings import KEY, about, acquired, one_of_each

EXPECTED: dict[str, dict[str, float]] = {
    "Acquired": {
        "dlock_acquisition_seconds": 0.004,
        "dlock_ttl_seconds": 30.0,
        "dlock_wait_seconds": 2.0,
        "dlock_woken_seconds": 0.01,
    },
    "Contended": {"dlock_refused": 1},
    "Rescheduled": {"dlock_rescheduled": 1},
    "Parked": {"dlock_parked": 1, "dlock_refused": 1},
    "Woken": {"dlock_woken": 1},
    "TooLarge": {"dlock_too_large": 1},
    "Revoked": {"dlock_revoked": 1},
    "DeadLettered": {"dlock_dead_lettered": 1},
    "Discarded": {},
    "Unreserved": {},
    "LeftToOthers": {"dlock_left_to_others": 1},
    "Skipped": {"dlock_skipped": 1},
    "Dropped": {"dlock_dropped": 1},
    "Deduplicated": {"dlock_deduplicated": 1},
    "Debounced": {"dlock_debounced": 1},
    "TimedOut": {"dlock_timed_out": 1, "dlock_wait_seconds": 3.0},
    "Released": {"dlock_hold_seconds": 1.5},
    "Lost": {"dlock_lost": 1},
    "Uncertain": {},
    "Confirmed": {},
    "StaleRejected": {"dlock_stale_rejected": 1},
    "Unavailable": {"dlock_unavailable": 1},
    "TickSent": {"dlock_beat_sent": 1},
    "TickRepeated": {"dlock_beat_repeated": 1},
    "TicksMissed": {"dlock_beat_missed": 1},
}


def measured(event: Event) -> dict[str, float]:
    return {measure.name: value for measure, value in measurements(event)}


def test_each_event_is_measured() -> None:
    assert {type(each).__name__: measured(each) for each in one_of_each(about())} == EXPECTED


AGAIN: dict[str, float] = {"dlock_woken": 1, "dlock_woken_again": 1}


def test_every_measure_has_an_event() -> None:
    assert {measure.name for measure in MEASURES} == {
        name for found in (*EXPECTED.values(), AGAIN) for name in found
    }


@pytest.mark.parametrize(
    ("event", "found"),
    [
        # A wake that is repeated is also counted by itself
        (Woken(about(), KEY, None, "celery", before=2), AGAIN),
        # Who was neither refused nor woken has not waited
        (acquired(about()), {"dlock_acquisition_seconds": 0.004, "dlock_ttl_seconds": 30.0}),
        # A task that is refused again is one that was refused
        (Contended(about(), KEY, None, 1, 2.5), {}),
        # A place that was taken on publishing is no contention
        (Parked(about(), KEY, refused=False), {"dlock_parked": 1}),
        # A lock that was given up for a newer task is not lost
        (Lost(about(), KEY, "replaced by newer", "newer"), {}),
    ],
)
def test_some_are_counted_otherwise(event: Event, found: dict[str, float]) -> None:
    assert measured(event) == found


def test_the_time_since_a_task_was_woken_is_seen_by_the_millisecond() -> None:
    assert len([bound for bound in SINCE_WOKEN.buckets if bound <= 0.05]) >= 6


def test_the_danger_lines_are_seen_for_the_default_lease_and_for_one_of_an_hour() -> None:
    for measure, line in ((ACQUISITION, 0.5), (HOLD, 0.8)):
        assert line * Settings(url="memory://").ttl in measure.buckets
        assert line * 3600 <= measure.buckets[-1]
