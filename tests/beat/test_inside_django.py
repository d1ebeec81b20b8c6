"""django-celery-beat inside: what its rows say is sent once, whoever leads and comes after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import override_settings

from tests.beat.inside import at, dies, refuses, run, take_over
from tests.services.django_rows import (
    Make,
    clocked,
    crontab,
    every,
    forget_runs,
    saved,
    solar,
    task,
)

pytestmark = pytest.mark.once


@pytest.mark.parametrize("name", ["django", "django_celery_beat.schedulers:DatabaseScheduler"])
def test_an_interval_by_either_name(make: Make, name: str) -> None:
    with make(dlock_beat_scheduler=name) as of:
        task(**every(10))
        of.tick_all()
        of.advance(14)
        of.tick_all()  # late
        of.advance(3)
        of.tick_all()
        of.advance(10)
        of.tick_all()

        assert of.dues("pay") == [at(10), at(20), at(30)]


def test_every_kind_of_row(make: Make) -> None:
    with make() as of:
        task("clocked", **clocked(at(30)))
        task("minutely", **crontab())
        task("in Paris", **crontab(hour="13", minute="2", timezone="Europe/Paris"))
        task("at noon", **solar("solar_noon", 48.0, -8))
        of.tick(0)
        of.die(0)
        of.advance(57 + 60)
        of.tick(1)
        of.advance(3600)
        take_over(of, 2)

        assert of.dues("clocked") == [at(30)]
        assert of.dues("minutely") == [at(120), at(3720)]
        assert of.dues("in Paris") == [at(120)]
        (noon,) = of.dues("at noon")
        assert at(600) < noon < at(1800)


def test_what_the_database_says_after_a_tick(make: Make) -> None:
    with make() as of:
        row = task(**every(10))
        run(of, until=25)
        of.advance(0.5)

        of.beats[0].close()

        assert (saved(row).last_run_at, saved(row).total_run_count) == (at(20), 2)
        run(of, until=35, number=1)
        of.beats[1].close()
        assert (saved(row).last_run_at, saved(row).total_run_count) == (at(30), 3)


@pytest.mark.parametrize("ends", [dies, refuses])
@pytest.mark.parametrize("point", ["before it is published", "after it was published"])
def test_a_takeover_repeats_nothing(make: Make, point: str, ends: Callable[[], None]) -> None:
    with make() as of:
        row = task(**every(10))
        run(of, until=15)
        of.faults[point] = ends
        of.advance(5)
        of.tick(0)
        of.advance(13)
        of.tick(1)
        run(of, until=45, number=1)

        again = [at(20)] * (point == "after it was published")
        assert of.dues("pay") == [at(10), *again, at(20), at(30), at(40)]
        assert len({sent.task_id for sent in of.sent}) == 4
        of.beats[1].close()
        assert saved(row).last_run_at == at(40)


ONCE = pytest.mark.parametrize(
    "when",
    [lambda: clocked(at(10)), lambda: {**every(10), "one_off": True}],
    ids=["clocked", "one-off"],
)


@ONCE
def test_a_row_that_is_sent_a_single_time(make: Make, when: Callable[[], dict[str, Any]]) -> None:
    with make() as of:
        row = task(**when())
        run(of, until=12)
        of.beats[0].close()
        of.advance(30)
        of.tick(1)

        assert of.dues("pay") == [at(10)]
        assert not saved(row).enabled


@ONCE
def test_a_row_that_was_sent_is_not_sent_again_though_the_database_never_heard_of_it(
    make: Make, when: Callable[[], dict[str, Any]]
) -> None:
    with make() as of:
        row = task(**when())
        run(of, until=12)
        forget_runs(row)
        take_over(of, 1)
        run(of, until=60, number=1)

        assert of.dues("pay") == [at(10)]
        assert not saved(row).enabled


@ONCE
@pytest.mark.parametrize("ends", [dies, refuses])
def test_a_row_that_could_not_be_sent_is_sent_by_the_next_leader(
    make: Make, when: Callable[[], dict[str, Any]], ends: Callable[[], None]
) -> None:
    with make() as of:
        row = task(**when())
        of.tick(0)
        of.advance(8)
        of.faults["before it is published"] = ends
        of.tick(0)
        assert of.sent == []
        assert saved(row).total_run_count == 0

        of.advance(1)
        of.tick(1)
        assert of.dues("pay") == [at(10)]


@ONCE
def test_a_row_that_is_switched_on_again_is_sent_again(
    make: Make, when: Callable[[], dict[str, Any]]
) -> None:
    with make() as of:
        row = task(**when())
        run(of, until=12)
        of.beats[0].close()
        of.tick(1)
        of.advance(30)
        of.tick(1)
        saved(row, enabled=True)
        run(of, until=60, number=1)

        assert len(of.dues("pay")) == 2
        assert of.sent[0].task_id != of.sent[1].task_id
        take_over(of, 2)
        assert len(of.dues("pay")) == 2


def test_a_row_that_is_switched_on_again_is_not_forgotten_by_the_next_leader(make: Make) -> None:
    with make() as of:
        row = task(**clocked(at(10)))
        run(of, until=12)
        of.beats[0].close()
        of.tick(1)
        of.advance(30)
        saved(row, enabled=True)
        of.faults["after note"] = dies
        of.tick(1)
        of.advance(1)
        of.tick(2)

        assert len(of.dues("pay")) == 2


def test_a_clocked_row_of_an_instant_that_is_past_is_sent_at_once(make: Make) -> None:
    with make() as of:
        task(**clocked(at(-100)))
        of.tick(0)
        take_over(of, 1)

        assert len(of.dues("pay")) == 1


@pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning")
def test_a_project_without_time_zones(make: Make) -> None:
    with (
        override_settings(USE_TZ=False, TIME_ZONE="UTC", DJANGO_CELERY_BEAT_TZ_AWARE=False),
        make() as of,
    ):
        row = task(**every(10))
        run(of, until=25)
        of.beats[0].close()
        of.tick(1)

        assert of.dues("pay") == [at(10), at(20)]
        assert saved(row).last_run_at == at(20).replace(tzinfo=None)
