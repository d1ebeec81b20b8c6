"""An entry of beat whose last run is still going: its next tick does what its policy says."""

# mypy: allow-untyped-calls

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from celery_dlock.beat.scheduler import LeaderScheduler
from tests.services.desk import Desk, open_desk


class SlowEntry:
    """A beat that sends an entry every ten seconds, and the first run of it, which goes on."""

    def __init__(self, desk: Desk, policy: str) -> None:
        self.desk = desk
        self.ran: list[str] = []
        self.now = datetime(2026, 11, 21, 12, 0, 3, tzinfo=UTC)
        self._begun, self._end = threading.Event(), threading.Event()
        desk.app.now = lambda: self.now
        desk.app.conf.beat_schedule = {"slow": {"task": "slow", "schedule": 10.0}}
        self.beat = LeaderScheduler(desk.app)

        @desk.locked(name="slow", bind=True, on_contention=policy)
        def slow(task: Any) -> None:
            self.ran.append(task.request.id)
            if len(self.ran) == 1:
                self._begun.set()
                assert self._end.wait(60)

        self._pass()

    def tick(self) -> str:
        """Ten seconds later: the id of the task that beat has sent."""
        self.now += timedelta(seconds=10)
        self._pass()
        message = self.desk.take()
        assert message is not None
        message.requeue()
        return str(message.headers["id"])

    def _pass(self) -> None:
        self.beat._next = 0.0
        while self.beat.tick() <= 0:
            self.now += timedelta(milliseconds=1)

    def _deliver(self) -> None:
        self.desk.app.set_current()
        self.desk.deliver()

    @contextmanager
    def running(self) -> Iterator[str]:
        """Its first tick runs."""
        first = self.tick()
        thread = threading.Thread(target=self._deliver)
        thread.start()
        assert self._begun.wait(60)
        try:
            yield first
        finally:
            self._end.set()
            thread.join()


@pytest.fixture
def slow(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SlowEntry]:
    with open_desk(
        dlock_url=f"sqlite:///{tmp_path / 'locks.db'}",
        dlock_beat_scheduler="celery.beat:Scheduler",
    ) as desk:
        entry = SlowEntry(desk, request.param)
        yield entry
        entry.beat.close()


@pytest.mark.parametrize("slow", ["skip"], indirect=True)
def test_skip_leaves_the_tick_out_and_says_who_is_at_it(slow: SlowEntry) -> None:
    with slow.running() as first:
        second = slow.tick()
        slow.desk.deliver()

        result = slow.desk.result(second).get()

    assert slow.ran == [first]
    assert result["skipped"] is True
    assert result["holder"] == first


@pytest.mark.parametrize("slow", ["queue"], indirect=True)
def test_queue_has_the_tick_wait_for_its_turn(slow: SlowEntry) -> None:
    with slow.running() as first:
        waiting = []
        for _ in range(2):
            waiting.append(slow.tick())
            slow.desk.deliver()
        assert slow.ran == [first]

    slow.desk.deliver_all()

    assert slow.ran == [first, *waiting]


@pytest.mark.parametrize("slow", ["replace"], indirect=True)
def test_replace_keeps_the_newest_tick_only(slow: SlowEntry) -> None:
    with slow.running() as first:
        second = slow.tick()
        slow.desk.deliver()
        third = slow.tick()
        slow.desk.deliver()
        slow.desk.deliver_all()

        assert slow.desk.result(second).get()["skipped"] is True

    slow.desk.deliver_all()

    assert slow.ran == [first, third]
