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


@pytest.mark.parametrize("event", one_of_each(about()), ids=lambda event: type(event).__name__)
def test_each_event_is_measured(event: Event) -> None:
    assert measured(event) == EXPECTED[type(event).__name__]


AGAIN: dict[str, float] = {"dlock_woken": 1, "dlock_woken_again": 1}


def test_every_measure_has_an_event() -> None:
    assert {measure.name for measure in MEASURES} == {
        name for found in (*EXPECTED.values(), AGAIN) for name in found
    }


def test_a_wake_that_is_repeated_is_also_counted_by_itself() -> None:
    assert measured(Woken(about(), KEY, None, "celery", before=2)) == AGAIN


def test_the_time_since_a_task_was_woken_is_seen_by_the_millisecond() -> None:
    assert len([bound for bound in SINCE_WOKEN.buckets if bound <= 0.05]) >= 6


def test_who_was_neither_refused_nor_woken_has_not_waited() -> None:
    assert measured(acquired(about())) == {
        "dlock_acquisition_seconds": 0.004,
        "dlock_ttl_seconds": 30.0,
    }


def test_a_task_that_is_refused_again_is_one_that_was_refused() -> None:
    assert measured(Contended(about(), KEY, None, 1, 2.5)) == {}


def test_a_place_that_was_taken_on_publishing_is_no_contention() -> None:
    assert measured(Parked(about(), KEY, refused=False)) == {"dlock_parked": 1}


def test_the_danger_lines_are_seen_for_the_default_lease_and_for_one_of_an_hour() -> None:
    for measure, line in ((ACQUISITION, 0.5), (HOLD, 0.8)):
        assert line * Settings(url="memory://").ttl in measure.buckets
        assert line * 3600 <= measure.buckets[-1]


def test_a_lock_that_was_given_up_for_a_newer_task_is_not_counted_as_lost() -> None:
    assert measured(Lost(about(), KEY, "replaced by newer", "newer")) == {}
