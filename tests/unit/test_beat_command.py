"""``celery -A shop dlock beat``: who leads, who stands by, what is due, and another one, please."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from celery.schedules import crontab
from click.testing import CliRunner, Result

from celery_dlock.beat import leader
from celery_dlock.beat.leader import Status
from celery_dlock.cli import beat as cli
from celery_dlock.cli.main import dlock
from celery_dlock.core.lease import SECOND
from celery_dlock.errors import BackendUnavailable
from celery_dlock.runtime import forget
from celery_dlock.stores.sql.sqlite import SqliteBackend
from tests.services.beats import Beats, beats


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Beats]:
    """Three beats; those that stand by do so for minutes, however long the test takes."""
    monkeypatch.setattr(leader, "STANDBY_SECONDS", 600.0)
    schedule = {"often": 10.0, "nightly": crontab(hour="3", minute="0")}
    with beats(tmp_path, schedule) as of:
        of.backend.sweep()  # the store is there
        yield of


def run(of: Beats, *arguments: str) -> Result:
    return CliRunner().invoke(dlock, ["beat", *arguments], obj=SimpleNamespace(app=of.app))


def test_it_shows_who_leads_who_stands_by_and_what_is_due(three: Beats) -> None:
    three.tick_all()
    who = [beat._leader.who for beat in three.beats]

    shown = run(three).output.splitlines()

    assert shown[0].startswith(f"leads      {who[0]}  since 20")
    assert shown[1:] == [
        f"stands by  {who[1]}",
        f"           {who[2]}",
        "next due   often    2026-11-21 12:00:10+00:00",
        "           nightly  2026-11-22 03:00:00+00:00",
    ]


def test_times_are_those_of_the_application(three: Beats) -> None:
    three.app.conf.timezone = "Europe/Berlin"
    three.tick_all()

    assert "2026-11-21 13:00:10+01:00" in run(three).output


def test_where_none_leads_it_exits_with_one(three: Beats) -> None:
    for result in (run(three), run(three, "--json")):
        assert result.exit_code == 1
    assert "leads      no beat" in run(three).output
    assert (
        run(three, "--step-down").output
        == "Error: no beat leads: start one with `celery beat -S dlock`\n"
    )


def test_without_another_beat_nobody_steps_down(three: Beats) -> None:
    three.tick(0)

    result = run(three, "--step-down")

    assert result.exit_code == 1
    assert "no beat stands by" in result.output
    three.tick(0)
    assert three.leader() == 0


def test_who_has_not_asked_for_a_while_does_not_stand_by(three: Beats) -> None:
    three.tick_all()
    backend = three.backend
    assert isinstance(backend, SqliteBackend)
    now = backend._now()
    backend._now = lambda: now + int(2 * leader.STANDBY_SECONDS * SECOND)

    assert json.loads(run(three, "--json").output)["standbys"] == []


def test_it_waits_until_it_has_handed_over(three: Beats, monkeypatch: pytest.MonkeyPatch) -> None:
    three.tick_all()

    def sleep(_: float) -> None:
        for number in (0, 2, 1):
            three.tick(number)

    monkeypatch.setattr(cli, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))

    result = run(three, "--step-down")

    assert result.exit_code == 0
    assert f"leads      {three.beats[2]._leader.who}" in result.output
    assert f"{three.beats[0]._leader.who}  has stepped down, and asks again" in result.output
    assert three.leader() == 2


def test_of_a_database_it_says_what_is_not_listed(three: Beats) -> None:
    three.tick(0)
    assert "of the database" not in run(three).output

    forget(three.app)
    three.app.conf.dlock_beat_scheduler = "django"

    *_, last = run(three).output.splitlines()
    hint = "(crontabs of the database that are due in more than two hours are not listed)"
    assert last.strip() == hint


def test_who_leads_since_then_is_not_meant(three: Beats) -> None:
    three.tick_all()
    before = Status.of(three.app)
    three.die(0)
    three.tick(1)

    before.ask_to_step_down(three.backend)
    three.tick(1)

    assert three.leader() == 1


def test_a_leader_that_does_not_answer_is_waited_for_so_long(three: Beats) -> None:
    three.tick_all()

    result = run(three, "--step-down", "--timeout", "0")

    assert result.exit_code == 1
    assert "was asked to step down, and no other beat leads yet" in result.output


def test_a_store_that_is_away_is_said(three: Beats) -> None:
    def away() -> None:
        raise BackendUnavailable("the store is away")

    three.faults["before notes"] = away

    result = run(three)

    assert result.exit_code == 1
    assert result.output == "Error: the store is away\n"
