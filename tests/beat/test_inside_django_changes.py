"""django-celery-beat inside: rows that start and expire, operators, and a database that is away."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery.schedules import crontab as celery_crontab

from celery_dlock.beat.leader import key_of
from celery_dlock.errors import BackendUnavailable
from tests.beat.inside import at, run, take_over
from tests.services.beats import Beats
from tests.services.django_rows import (
    Make,
    clocked,
    crontab,
    every,
    forget_runs,
    saved,
    task,
)

pytestmark = pytest.mark.once


def inside(of: Beats, number: int) -> Any:
    """The scheduler of the beat that leads."""
    scheduler = of.beats[number]._scheduler
    assert scheduler is not None
    return scheduler


@pytest.mark.parametrize("starts", [27, 3613])
def test_nothing_is_sent_before_the_start_and_nothing_made_up_for(make: Make, starts: int) -> None:
    with make() as of:
        task(**every(10), start_time=at(starts))
        of.tick(0)
        of.advance(starts - 5)
        take_over(of, 1)
        run(of, until=starts + 21, number=1)

        assert of.dues("pay") == [at(starts), at(starts + 10), at(starts + 20)]


def test_a_start_that_an_operator_sets_later_on(make: Make) -> None:
    with make() as of:
        row = task(**every(10))
        run(of, until=15)
        saved(row, start_time=at(94))
        run(of, until=105)
        take_over(of, 1)

        assert of.dues("pay") == [at(10), at(94), at(104)]


def test_a_crontab_starts_with_the_first_instant_that_it_names(make: Make) -> None:
    with make() as of:
        task(**crontab(), start_time=at(90))
        of.tick(0)
        of.advance(90)
        take_over(of, 1)
        assert of.sent == []
        run(of, until=130, number=1)

        assert of.dues("pay") == [at(120)]


def test_a_row_that_has_expired(make: Make) -> None:
    with make() as of:
        row = task(**every(10), expires=at(25))
        run(of, until=45)

        assert of.dues("pay") == [at(10), at(20)]
        assert not saved(row).enabled


def test_what_an_operator_changes_while_a_beat_leads(make: Make) -> None:
    with make() as of:
        row = task(**every(10))
        run(of, until=15)
        assert inside(of, 0).tick() <= 5
        task("added", **every(10))
        run(of, until=25)
        saved(row, **every(20))
        run(of, until=45)
        saved(row, enabled=False)
        run(of, until=105)
        saved(row, enabled=True)
        run(of, until=125)

        assert of.dues("pay") == [at(10), at(20), at(40), at(120)]
        assert of.dues("added") == [at(10 * number) for number in range(2, 13)]


def test_a_row_that_was_off_is_not_made_up_for_by_the_next_leader(make: Make) -> None:
    with make() as of:
        row = task(**every(60))
        run(of, until=15)
        saved(row, enabled=False)
        run(of, until=190)
        saved(row, enabled=True)
        run(of, until=200)
        take_over(of, 1)
        of.advance(1)
        of.tick(1)

        assert of.sent == []


def test_a_row_of_the_settings_that_was_never_run_is_made_up_for(make: Make) -> None:
    settings = {"daily": {"task": "daily", "schedule": celery_crontab(hour="12", minute="1")}}
    with make(beat_schedule=settings) as of:
        of.tick(0)
        of.advance(120)
        take_over(of, 1)

        assert of.dues("daily") == [at(60)]


def test_what_fell_due_while_nobody_led_stays_missed(make: Make) -> None:
    with make(dlock_beat_catch_up="none") as of:
        task(**every(60))
        of.tick(0)
        of.advance(75)
        take_over(of, 1)
        of.advance(5)
        task("another", **every(60))
        of.tick(1)
        of.advance(5)
        of.tick(1)

        assert of.sent == []
        assert of.missed() == [("pay", at(60).isoformat(), at(120).isoformat())]


@pytest.mark.parametrize("loses", ["it is deposed", "it hands over"])
def test_who_has_led_writes_nothing_to_the_database(make: Make, loses: str) -> None:
    with make() as of:
        row = task(**every(10))
        of.tick(0)
        of.advance(7)
        of.tick(0)
        old = inside(of, 0)
        old._dirty.add("pay")
        if loses == "it is deposed":
            of.depose(0)
        else:
            of.beats[0].close()
        of.advance(10)
        of.tick(1)
        of.tick(0)
        of.beats[1].close()
        row.total_run_count = 7
        row.save(update_fields=["total_run_count"])

        of.tick(0)
        assert of.leader() == 0
        old._dirty.add("pay")
        old.sync()
        old._finalize()

        assert saved(row).total_run_count == 7


def test_what_is_dropped_writes_nothing_to_the_database(make: Make) -> None:
    with make() as of:
        row = task(**every(10))
        of.tick(0)
        for _ in range(2):  # django-celery-beat writes every three minutes only
            of.advance(10)
            of.tick(0)
        inside(of, 0).drop()

        assert of.dues("pay") == [at(10), at(20)]
        assert saved(row).total_run_count == 1


def test_what_is_known_of_rows_that_are_gone_is_forgotten_while_a_beat_leads(make: Make) -> None:
    with make() as of:
        once, _ = task("once", **clocked(at(10))), task("often", **every(60))
        run(of, until=12)
        once.delete()
        of.advance(24 * 3600 + 60)
        of.tick(0)

        assert set(of.backend.notes(key_of(of.app))) == {"often"}
        assert set(inside(of, 0)._met) == {"often"}


def test_a_scheduler_that_is_done_with_is_not_kept(make: Make) -> None:
    with make() as of:
        task(**every(10))
        of.tick(1)
        old = weakref.ref(inside(of, 1))
        of.depose(1)
        of.tick(2)
        of.advance(10)
        of.tick(2)
        of.tick(1)
        gc.collect()

        assert old() is None


@contextmanager
def away(folder: Path) -> Iterator[None]:
    """The database cannot be opened."""
    elsewhere = folder.rename(folder.parent / "elsewhere")
    try:
        yield
    finally:
        elsewhere.rename(folder)


def test_who_is_made_after_ticks_of_its_grid_has_missed_none(make: Make) -> None:
    with make() as of:
        task(**every(60))
        of.tick(0)
        of.advance(4)
        row = task("late", **every(3))
        row.date_changed = of.now  # Django has written the time of this host
        forget_runs(row)
        of.advance(12)
        of.tick(0)
        of.advance(3)
        of.tick(0)

        assert of.dues("late") == [at(18), at(21)]
        assert of.missed() == []


def test_a_database_that_is_away_while_a_beat_leads(make: Make, tmp_path: Path) -> None:
    with make() as of:
        row = task(**every(10))
        run(of, until=15)
        with away(tmp_path / "rows"):
            run(of, until=35)
            assert of.dues("pay") == [at(10), at(20), at(30)]
            of.advance(400)  # it would have read all the rows again
            for _ in range(3):
                of.tick_all()
        for number in range(3):
            of.tick(number)

        assert of.dues("pay") == [at(10), at(20), at(30), at(430)]
        assert of.missed() == [("pay", at(40).isoformat(), at(430).isoformat())]
        for number in range(3):
            of.beats[number].close()
        assert saved(row).last_run_at == at(430)


def test_a_database_that_is_away_when_the_lead_is_taken(make: Make, tmp_path: Path) -> None:
    with make() as of:
        task(**every(10))
        of.tick(0)
        of.die(0)
        with away(tmp_path / "rows"):
            of.advance(20)
            of.tick_all()
            assert of.leader() is None
        of.tick_all()

        assert of.dues("pay") == [at(20)]


def test_a_lock_store_that_is_away_for_a_moment(make: Make) -> None:
    def refuses() -> None:
        raise BackendUnavailable("the store is away")

    with make() as of:
        task(**every(10))
        task("often", **every(5))
        run(of, until=24)
        of.faults["before note"] = refuses
        run(of, until=44)

        assert of.dues("pay") == [at(10), at(20), at(30), at(40)]
        assert of.dues("often") == [at(5 * number) for number in range(1, 9)]
        assert of.missed() == []
