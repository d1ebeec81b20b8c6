"""When entries fall due, whoever asks and whenever."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule, solar
from hypothesis import given
from hypothesis import strategies as st

from celery_dlock.beat.ticks import EPOCH, Tick, due_tick, next_due, settled, tick_id

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def app(timezone: str = "UTC") -> Celery:
    made = Celery("shop", set_as_current=False)
    made.conf.timezone = timezone
    return made


def ticks(of: Any, after: datetime, count: int) -> list[datetime]:
    found = []
    for _ in range(count):
        due = next_due(of, after)
        assert due is not None
        found.append(after := due)
    return found


@given(
    every=st.timedeltas(timedelta(milliseconds=1), timedelta(days=400)),
    instant=st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1), timezones=st.just(UTC)),
)
def test_an_interval_has_its_ticks_on_a_grid(every: timedelta, instant: datetime) -> None:
    due = next_due(schedule(every), instant)

    assert due is not None
    assert due - every <= instant < due
    assert (due - EPOCH) % every == timedelta(0)
    assert settled(schedule(every), due) == due


def test_every_beat_names_the_same_instants() -> None:
    ten = schedule(10)

    assert next_due(ten, NOON + 3 * SECOND) == next_due(ten, NOON + 9.9 * SECOND)


def test_a_crontab_is_read_in_its_time_zone() -> None:
    daily = crontab(minute="30", hour="2", app=app("Europe/Berlin"))

    summer, winter = datetime(2026, 7, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)

    assert next_due(daily, summer) == datetime(2026, 7, 1, 0, 30, tzinfo=UTC)
    assert next_due(daily, winter) == datetime(2026, 12, 1, 1, 30, tzinfo=UTC)


@pytest.mark.parametrize("day", [datetime(2026, 3, 28, 12), datetime(2026, 10, 24, 12)])
def test_a_day_on_which_the_clocks_change_has_one_tick_of_a_daily_entry(day: datetime) -> None:
    daily = crontab(minute="30", hour="2", app=app("Europe/Berlin"))

    dues = ticks(daily, day.replace(tzinfo=UTC), 4)

    days = [due.astimezone(daily.tz).date() for due in dues]
    assert days == [day.date() + timedelta(days=n) for n in (1, 2, 3, 4)]


@pytest.mark.parametrize("month", [3, 10])
def test_no_tick_comes_twice_where_the_clocks_change(month: int) -> None:
    often = crontab(minute="*/20", app=app("America/New_York"))

    dues = ticks(often, datetime(2026, month, 31, tzinfo=UTC) - timedelta(days=40), 72 * 45)

    assert dues == sorted(set(dues))
    assert max(b - a for a, b in pairwise(dues)) <= timedelta(minutes=80)


def test_in_the_hour_that_is_repeated_a_crontab_misses_no_tick() -> None:
    often = crontab(minute="*/10", app=app("Europe/Berlin"))
    before, after = datetime(2026, 10, 25, 0, 50, tzinfo=UTC), datetime(2026, 10, 25, 2, tzinfo=UTC)

    assert due_tick(often, before, after - SECOND) is None
    assert due_tick(often, before, after) == Tick(after)


def test_a_solar_entry_is_due_when_the_sun_says() -> None:
    pytest.importorskip("ephem")
    sunset = solar("sunset", 52.5, 13.4, app=app())

    first, second = ticks(sunset, NOON, 2)

    assert NOON < first < NOON + timedelta(hours=6)
    assert timedelta(hours=23) < second - first < timedelta(hours=25)
    assert next_due(sunset, first - SECOND) == pytest.approx(first, abs=SECOND)


class Once(BaseSchedule):  # type: ignore[misc]
    """As django-celery-beat's ``clocked``: one instant, whatever the last one was."""

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        left: timedelta = NOON - self.now()
        return left


class Never(BaseSchedule):  # type: ignore[misc]
    """As RedBeat's rule that has come to its end."""

    def remaining_estimate(self, last_run_at: datetime) -> None:
        return None


def test_a_schedule_may_come_to_its_end() -> None:
    assert next_due(Once(app=app()), NOON - SECOND) == NOON
    assert next_due(Once(app=app()), NOON) is None
    assert next_due(Never(app=app()), NOON) is None


def test_before_the_next_tick_there_is_nothing_to_send() -> None:
    assert due_tick(schedule(10), NOON, NOON + 9 * SECOND) is None
    assert due_tick(schedule(10), NOON, NOON - 99 * SECOND) is None


@pytest.mark.parametrize("every", [schedule(60), crontab()])
@pytest.mark.parametrize("minutes", [1, 2, 3, 59, 60, 61, 1000])
def test_of_several_ticks_the_latest_is_sent(every: Any, minutes: int) -> None:
    now = NOON + minutes * timedelta(minutes=1) + 5 * SECOND
    first, latest = NOON + timedelta(minutes=1), NOON + minutes * timedelta(minutes=1)

    missed = first if minutes > 1 else None
    assert due_tick(every, NOON, now) == Tick(latest, missed)


def test_the_latest_of_a_rare_schedule_is_found_after_a_long_time() -> None:
    yearly = crontab(minute="0", hour="0", day_of_month="1", month_of_year="1", app=app())
    now = datetime(2036, 6, 1, tzinfo=UTC)

    tick = due_tick(yearly, NOON, now)

    assert tick == Tick(datetime(2036, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC))


def test_the_latest_of_very_many_is_found_without_looking_at_each() -> None:
    asked = []

    class Counted(crontab):  # type: ignore[misc]
        def remaining_estimate(self, last_run_at: datetime, **more: Any) -> Any:
            asked.append(last_run_at)
            return super().remaining_estimate(last_run_at, **more)

    tick = due_tick(Counted(app=app()), NOON, NOON + timedelta(days=1000))

    assert tick is not None
    assert tick.due == NOON + timedelta(days=1000)
    assert len(asked) < 20


def test_a_tick_has_one_id_and_no_other_tick_has_it() -> None:
    ids = {
        tick_id(scope, entry, due)
        for scope in ("a", "a:b")
        for entry in ("x", "b:x")
        for due in (NOON, NOON + timedelta(microseconds=1))
    }

    assert len(ids) == 8
    assert tick_id("a", "x", NOON) in ids
