"""Entries that cannot say when they are due, or are mistaken: all others are sent when they are."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from celery.schedules import BaseSchedule, crontab, schedstate, schedule

from tests.beat.inside import at
from tests.services.beats import Beats
from tests.unit.conftest import Make


class Odd(BaseSchedule):  # type: ignore[misc]
    """It is due each ten seconds, and cannot say so as long as it is *broken*."""

    broken = True

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        if self.broken:
            raise ZeroDivisionError
        left: timedelta = last_run_at + timedelta(seconds=10) - self.now()
        return left

    def is_due(self, last_run_at: datetime) -> schedstate:
        left = self.remaining_estimate(last_run_at).total_seconds()
        return schedstate(left <= 0, 10 if left <= 0 else left)


class OnlyIfDue(BaseSchedule):  # type: ignore[misc]
    """It says that it is due, and not when it will be."""

    def is_due(self, last_run_at: datetime) -> tuple[bool, float]:
        left = 5 - (self.now() - last_run_at).total_seconds()
        return left <= 0, max(left, 1.0)


def run(of: Beats, until: float) -> None:
    """The first leads and looks every second."""
    while of.now < at(until):
        of.tick(0)
        of.advance(1)


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.message for each in caplog.records if "cannot compute when" in each.message]


@pytest.mark.parametrize("kind", [Odd, OnlyIfDue])
def test_an_odd_entry_keeps_no_other_back(make: Make, kind: type[BaseSchedule]) -> None:
    with make({"odd": kind(), "ten": 10.0}) as of:
        for _ in range(3):
            of.tick(0)
            of.advance(10)

        assert of.dues("ten") == [at(10), at(20)]
        assert len(of.dues("odd")) == (2 if kind is OnlyIfDue else 0)
        assert of.leader() == 0


def test_one_whose_due_time_cannot_be_had(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    with make({"odd": Odd(), "ten": 10.0}) as of:
        odd = of.app.conf.beat_schedule["odd"]["schedule"]
        odd.broken = False
        run(of, until=25)
        odd.broken = True
        run(of, until=105)

        assert of.dues("odd") == [at(13), at(23)]
        assert of.dues("ten") == [at(10 * number) for number in range(1, 11)]
        assert len(complaints(caplog)) == 1


def test_it_goes_on_from_what_is_known(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    with make({"odd": Odd(), "ten": 10.0}, beat_max_loop_interval=20) as of:
        odd = of.app.conf.beat_schedule["odd"]["schedule"]
        odd.broken = False
        run(of, until=15)
        of.die(0)
        odd.broken = True
        run(of, until=58)
        odd.broken = False
        run(of, until=105)

        first, *rest = of.dues("odd")
        ((_, missed, until),) = of.missed()
        assert (first, missed, until) == (at(13), at(23).isoformat(), rest[0].isoformat())
        assert rest == [at(10 * number + 3) for number in range(11 - len(rest), 11)]
        assert of.dues("ten") == [at(10 * number) for number in range(1, 11)]
        assert len(complaints(caplog)) == 1
        assert of.repeated() == {}


def test_one_that_is_mistaken_about_being_due_keeps_no_other_waiting(make: Make) -> None:
    # As an interval was, when the clocks had changed, before Celery 5.7
    early = schedule(3600)
    early.is_due = lambda _: schedstate(is_due=True, next=3600)
    with make({"early": early, "ten": 10.0}) as of:
        run(of, until=65)

        assert of.dues("early") == []
        assert of.dues("ten") == [at(10 * number) for number in range(1, 7)]


def test_a_clock_put_back_while_it_is_asked_brings_no_tick_that_no_schedule_names(
    make: Make,
) -> None:
    each_minute = crontab()
    is_due = each_minute.is_due
    put_back: list[float] = []

    def is_due_as_the_clock_is_put_back(last_run_at: datetime) -> schedstate:
        state = is_due(last_run_at)
        if state.is_due and not put_back:
            put_back.append(20)
            of.advance(-20)
        return state

    each_minute.is_due = is_due_as_the_clock_is_put_back
    with make({"each minute": each_minute}) as of:
        run(of, until=185)

        assert put_back
        assert of.dues("each minute") == [at(60), at(120), at(180)]
