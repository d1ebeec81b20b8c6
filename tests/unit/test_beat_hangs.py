"""A scheduler that does not come back, wherever it is called: the lead is not kept for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from celery.beat import Scheduler

from celery_dlock.beat.scheduler import LeaderScheduler
from tests.services.beats import Beats, beats
from tests.services.instants import in_another_thread


class Hangs(Scheduler):  # type: ignore[misc]
    """It does what a test says, once, where the test says it."""

    where: ClassVar[dict[str, Callable[[], None]]] = {}
    after: ClassVar[float]

    def setup_schedule(self) -> None:
        self._pass("making")
        super().setup_schedule()

    @property
    def schedule(self) -> Any:
        self._pass("reading")
        return self.data

    @schedule.setter
    def schedule(self, entries: Any) -> None:
        self.data = entries

    def sync(self) -> None:
        self._pass("writing")

    def close(self) -> None:
        self._pass("closing")
        super().close()

    def _pass(self, point: str) -> None:
        self.where.pop(point, lambda: None)()


class Alarm(threading.Timer):
    """It goes off where a test says so."""

    running: ClassVar[list[Alarm]] = []

    def start(self) -> None:
        self.running.append(self)

    def cancel(self) -> None:
        self.running.remove(self)

    def goes_off(self) -> None:
        """In a thread of its own, as a real one."""
        in_another_thread(self.function)


@pytest.fixture(params=[(30, 60), (50, 100)], ids=["TTL of 30 s", "TTL of 50 s"])
def of(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Beats]:
    """Three beats, none of which leads, and how long one may hang that does."""
    monkeypatch.setattr(threading, "Timer", Alarm)
    ttl, Hangs.after = request.param
    config = {"dlock_beat_scheduler": f"{__name__}:Hangs"}
    with beats(tmp_path, {"ten": 10.0}, dlock_ttl=ttl, **config) as of:
        yield of
        Hangs.where.clear()
    assert Alarm.running == []


def until_another_leads(of: Beats) -> None:
    """The first hangs until its time is over and another one has sent something."""
    assert of.leader() == 0
    (alarm,) = Alarm.running
    assert alarm.interval == Hangs.after
    alarm.goes_off()
    assert of.leader() is None
    of.tick(1)
    of.advance(7)
    of.tick(1)
    assert of.leader() == 1


@pytest.mark.parametrize("point", ["making", "reading"])
def test_one_that_hangs_as_it_is_made_leads_no_more(of: Beats, point: str) -> None:
    Hangs.where[point] = lambda: until_another_leads(of)
    of.tick(0)
    of.advance(10)
    of.tick_all()

    assert [sent.beat for sent in of.sent] == [1, 1]
    assert of.leader() == 1


WORK: dict[str, Callable[[LeaderScheduler], object]] = {
    "writing": LeaderScheduler._do_sync,
    "closing": LeaderScheduler.close,
}


@pytest.mark.parametrize("point", WORK)
def test_one_that_hangs_as_it_writes_or_is_closed_leads_no_more(of: Beats, point: str) -> None:
    of.tick(0)
    Hangs.where[point] = lambda: until_another_leads(of)
    WORK[point](of.beats[0])
    of.advance(10)
    of.tick_all()

    assert [sent.beat for sent in of.sent] == [1, 1]
    assert of.leader() == 1


def test_one_that_hangs_as_it_sends_leads_no_more(of: Beats) -> None:
    of.tick(0)
    of.faults["before it is published"] = lambda: until_another_leads(of)
    of.advance(7)
    of.tick(0)

    assert [sent.beat for sent in of.sent] == [1, 0]
    assert len({sent.task_id for sent in of.sent}) == 1
    assert sum(of.repeated().values()) == 1
