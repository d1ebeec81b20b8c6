"""What is measured by each event."""

from __future__ import annotations

import pytest

from celery_dlock.core.events import EVENTS, Contended, Event, Lost, Parked, TimedOut, Woken
from celery_dlock.core.measures import ACQUISITION, HOLD, SINCE_WOKEN
from celery_dlock.settings import Settings
from tests.monitoring.happenings import KEY, about, acquired, one_of_each, released

AGAIN: dict[str, float] = {"dlock_woken": 1, "dlock_woken_again": 1}


def measured(event: Event) -> dict[str, float]:
    return {measure.name: value for measure, value in event.measured()}


def test_all_others_are_counted_as_their_class_says() -> None:
    for event in one_of_each(about()):
        if type(event).measured is Event.measured:
            assert measured(event) == ({event.counts.name: 1} if event.counts else {})


def test_what_is_counted_in_one_place_is_counted_nowhere_else() -> None:
    names = [kind.counts.name for kind in EVENTS.values() if kind.counts]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("event", "found"),
    [
        (
            acquired(about(), waited=2.0, since_woken=0.01),
            {
                "dlock_acquisition_seconds": 0.004,
                "dlock_ttl_seconds": 30.0,
                "dlock_wait_seconds": 2.0,
                "dlock_woken_seconds": 0.01,
            },
        ),
        (released(about()), {"dlock_hold_seconds": 1.5}),
        (TimedOut(about(), KEY, 3.0), {"dlock_timed_out": 1, "dlock_wait_seconds": 3.0}),
        (Contended(about(), KEY, None, 0, 0.0), {"dlock_refused": 1}),
        (Parked(about(), KEY, refused=True), {"dlock_parked": 1, "dlock_refused": 1}),
        (Woken(about(), KEY, None), {"dlock_woken": 1}),
        (Lost(about(), KEY, "it has expired"), {"dlock_lost": 1}),
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
def test_some_are_counted_by_what_is_in_them(event: Event, found: dict[str, float]) -> None:
    assert measured(event) == found


def test_the_time_since_a_task_was_woken_is_seen_by_the_millisecond() -> None:
    assert len([bound for bound in SINCE_WOKEN.buckets if bound <= 0.05]) >= 6


def test_the_danger_lines_are_seen_for_the_default_lease_and_for_one_of_an_hour() -> None:
    for measure, line in ((ACQUISITION, 0.5), (HOLD, 0.8)):
        assert line * Settings(url="memory://").ttl in measure.buckets
        assert line * 3600 <= measure.buckets[-1]
