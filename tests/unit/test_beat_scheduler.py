"""The scheduler as Celery's beat sees it: what it refuses, when it sends, how it stops."""

from __future__ import annotations

import itertools
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from celery import Celery

from celery_dlock.beat.leader import LAST_PART
from celery_dlock.beat.scheduler import LeaderScheduler, stops_wait
from celery_dlock.core.state import Claim
from celery_dlock.errors import BackendUnavailable, ConfigurationError
from tests.unit.conftest import Make

TEN = {"ten": 10.0}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"dlock_url": "memory://"}, "needs a lock store that other processes see"),
        ({"dlock_beat_scheduler": "no.such:Scheduler"}, "cannot import no.such:Scheduler"),
        ({"dlock_beat_scheduler": "celery.beat:NoScheduler"}, "cannot import"),
        ({"dlock_beat_scheduler": "celery:Celery"}, "is no scheduler of Celery's beat"),
        ({"dlock_beat_scheduler": "dlock"}, "is the one inside, not dlock itself"),
        ({"dlock_beat_catch_up": "twice"}, "must be 'none' or 'once', got 'twice'"),
        ({"dlock_beat_cath_up": "once"}, "dlock_beat_catch_up"),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(
    app: Celery, tmp_path: Path, config: dict[str, Any], says: str
) -> None:
    app.conf.update({"dlock_url": f"sqlite:///{tmp_path / 'locks.db'}", **config})
    with pytest.raises(ConfigurationError, match=says) as caught:
        LeaderScheduler(app)
    assert isinstance(caught.value, click.ClickException)  # which `celery beat` prints in one line
    assert str(caught.value).startswith(f"Celery app {app.main!r}: ")


def test_a_wrong_setting_that_shows_late_ends_beat(make: Make) -> None:
    def wrong() -> None:
        raise ConfigurationError("the store has another password")

    with make(TEN) as of:
        of.faults["before enter"] = wrong

        with pytest.raises(ConfigurationError):
            of.tick(0)


def test_an_option_that_there_is_not_ends_beat(make: Make) -> None:
    wrong = {"ten": {"task": "ten", "schedule": 10.0, "shedule": 1}}
    with make({}, beat_schedule=wrong) as of, pytest.raises(ConfigurationError, match="shedule"):
        of.tick(0)


def test_in_the_last_part_of_a_lease_nothing_is_sent(make: Make) -> None:
    with make(TEN, dlock_ttl=600) as of:
        of.tick(0)
        lease = of.beats[0]._leader.lease
        assert lease is not None
        (term,) = lease.terms
        renewed = term.trusted_until
        term.trusted_until = term.monotonic() + term.ttl * LAST_PART * 0.9
        of.advance(7)

        of.tick(0)
        assert of.sent == []
        assert of.leader() == 0

        term.trusted_until = renewed
        of.tick(0)
        assert len(of.sent) == 1


def test_whatever_fails_in_the_scheduler_inside_ends_no_process(make: Make) -> None:
    def defect() -> None:
        raise KeyError("a defect")

    with make(TEN) as of:
        of.tick(0)
        of.faults["before note"] = defect
        of.advance(7)
        of.tick(0)
        assert of.leader() is None

        of.tick(1)
        assert len(of.sent) == 1


def test_an_unavailable_store_is_said_once(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    tries = itertools.count()

    def away(*_: Any, **__: Any) -> None:
        raise BackendUnavailable(f"no store, try {next(tries)}")

    claims: list[Claim] = []

    def lost(claim: Claim, *_: Any) -> None:
        claims.append(claim)
        away()

    with make(TEN) as of, pytest.MonkeyPatch.context() as patch:
        of.tick_all()
        patch.setattr(of.backend, "enter", lost)
        for operation in ("leave", "note", "notes"):
            patch.setattr(of.backend, operation, away)
        of.advance(7)
        for _ in range(20):
            of.tick_all()
            of.beats[1]._leader.rest(60)
            of.beats[1].tick()
        assert len(claims) == 2  # of those that stand by
        patch.undo()
        of.tick_all()

        assert len(of.sent) == 1
    said = [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]
    assert sum("is unavailable" in line for line in said) == len(of.beats)
    assert sum("beat: it works again, after" in line for line in said) == 1
    assert sum("beat: the lock store is available again, after" in line for line in said) == 2
    assert len(said) == 6


def test_a_standby_says_who_leads_once_and_again_when_another_does(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with make(TEN) as of:
        for _ in range(3):
            of.tick_all()
        of.beats[0].close()
        for _ in range(3):
            for number in (1, 2, 0):
                of.tick(number)
        zero, one, two = (beat._leader.who for beat in of.beats)

    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if "stands by" in line] == [
        f"beat: {one} stands by, {zero} leads",
        f"beat: {two} stands by, {zero} leads",
        f"beat: {two} stands by, {one} leads",
        f"beat: {zero} stands by, {one} leads",
    ]


def test_it_wakes_every_second_whatever_is_due(make: Make) -> None:
    with make({"rare": 3600.0}) as of:
        for beat in of.beats:
            beat.tick()  # one has the lead from now on

        assert all(0 < beat.tick() <= 1 for beat in of.beats)


@pytest.fixture
def stopped_by_signal() -> Iterator[None]:
    """As in Celery's beat: SIGTERM raises, wherever the process is."""

    def stop(*_: object) -> None:
        raise SystemExit

    usual = signal.signal(signal.SIGTERM, stop)
    yield
    signal.signal(signal.SIGTERM, usual)


@pytest.mark.usefixtures("stopped_by_signal")
def test_a_tick_that_was_begun_is_brought_to_its_end(make: Make) -> None:
    with make(TEN) as of:
        of.tick(0)
        of.advance(7)
        of.faults["before it is published"] = lambda: os.kill(os.getpid(), signal.SIGTERM)

        with pytest.raises(SystemExit):
            of.tick(0)
        of.beats[0].close()
        of.tick(1)

        assert len(of.sent) == 1
        assert of.repeated() == {}


@pytest.mark.usefixtures("stopped_by_signal")
def test_a_second_signal_does_not_wait() -> None:
    reached = []

    def block() -> None:
        with stops_wait():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            reached.append("the end of the block")

    with pytest.raises(SystemExit):
        block()

    assert not reached


@pytest.mark.usefixtures("stopped_by_signal")
def test_a_signal_while_it_hands_over_waits_for_that(make: Make) -> None:
    with make(TEN) as of:
        of.tick(0)
        of.faults["before leave"] = lambda: os.kill(os.getpid(), signal.SIGTERM)

        with pytest.raises(SystemExit):
            of.beats[0].close()

        assert of.leader() is None


@pytest.mark.usefixtures("stopped_by_signal")
def test_a_signal_is_not_forgotten_and_handlers_are_put_back() -> None:
    handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    reached = []

    def block() -> None:
        with stops_wait():
            signal.raise_signal(signal.SIGTERM)
            reached.append("the end of the block")

    with pytest.raises(SystemExit):
        block()

    assert reached
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == handlers
