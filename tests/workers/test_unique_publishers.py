"""Who publishes unique tasks: beat, canvases, and processes without a store."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import beat, chain

from celery_dlock import ConfigurationError, Unique
from celery_dlock.beat.scheduler import LeaderScheduler
from celery_dlock.core.events import Deduplicated, Unavailable
from celery_dlock.runtime import forget
from tests.services.desk import Desk, open_desk
from tests.services.ports import free_ports
from tests.services.unique import Make, maker, unheard

# Beat.


def test_celerys_beat_publishes_no_tick_while_one_lives_and_goes_on(desk: Desk, make: Make) -> None:
    make()
    desk.app.conf.beat_schedule = {"often": {"task": "report", "schedule": 1.0, "args": (1,)}}
    scheduler = beat.Scheduler(desk.app)
    entry = scheduler.schedule["often"]

    for _ in range(3):
        scheduler.apply_entry(entry)
    assert desk.deliver_all() == 1
    scheduler.apply_entry(entry)
    assert desk.deliver_all() == 1

    assert desk.ran == [1, 1]


def test_a_tick_of_ours_that_is_a_duplicate_ends_as_skipped(tmp_path: Path, desk: Desk) -> None:
    now = datetime(2026, 11, 21, 12, tzinfo=UTC)
    with open_desk(
        dlock_url=f"sqlite:///{tmp_path / 'locks.db'}", dlock_beat_scheduler="celery.beat:Scheduler"
    ) as desk:
        desk.app.now = lambda: now
        desk.app.conf.beat_schedule = {"often": {"task": "report", "schedule": 10.0, "args": (1,)}}
        maker(desk)()
        leader = LeaderScheduler(desk.app)
        for _ in range(3):
            leader._next = 0.0
            while leader.tick() <= 0:
                now += timedelta(milliseconds=1)
            now += timedelta(seconds=10)

        first, second = (desk.deliver().headers["id"] for _ in range(2))

        assert desk.ran == [1]
        assert desk.result(second).result["holder"] == first
        leader.close()
        forget(desk.app)


# A canvas.


def test_a_chain_ends_at_a_duplicate(desk: Desk, make: Make) -> None:
    first, report = make(None, name="first"), make()
    lives, message = report.delay(1), desk.receive()

    last = chain(first.si(0), report.si(1), first.si(2))()
    desk.deliver_all()

    desk.run(message)
    assert desk.ran == [0, 1]
    assert last.result["holder"] == last.parent.result["holder"] == lives.id


def test_a_replacement_that_is_a_duplicate_ends(desk: Desk, make: Make) -> None:
    report = make(key="day:{day}")
    lives, message = report.delay(1), desk.receive()

    outer = make(None, lambda task: task.replace(report.si(1)), name="outer").delay(0)
    desk.deliver_all()

    desk.run(message)
    assert outer.result["holder"] == lives.id
    assert desk.ran == [0, 1]


# What a call says besides.


@pytest.mark.parametrize("how", ["countdown", "eta"])
def test_what_is_due_later_lives_until_then(desk: Desk, make: Make, how: str) -> None:
    due = 3600 if how == "countdown" else datetime.now(UTC) + timedelta(hours=1)
    options: dict[str, Any] = {how: due}
    report = make()
    first = report.apply_async((1,), **options)
    unheard(desk.patch)

    again = report.delay(1)

    assert (again.id, again.is_duplicate, desk.size()) == (first.id, True, 1)


@pytest.mark.parametrize("how", ["task", "call"])
def test_without_results_it_is_an_id_and_nobody_waits(desk: Desk, make: Make, how: str) -> None:
    report = make(ignore_result=how == "task")
    options: dict[str, Any] = {"ignore_result": True} if how == "call" else {}

    first, again = (report.apply_async((1,), **options) for _ in range(2))

    assert again.is_duplicate
    assert (again.id, again.get(timeout=10), first.get()) == (first.id, None, None)


def test_over_rpc_a_duplicate_says_that_it_will_hear_nothing(desk: Desk) -> None:
    with open_desk(result_backend="rpc://") as desk:
        report = maker(desk)()
        first, again = report.delay(1), report.delay(1)

        assert again.id == first.id
        with pytest.raises(NotImplementedError, match="rpc://"):
            again.get()


# A process without a store.


def test_without_a_configured_store_a_call_is_an_error_and_nothing_is_published(desk: Desk) -> None:
    with open_desk(dlock_url=None) as desk:
        report = maker(desk)(Unique())

        with pytest.raises(ConfigurationError, match="dlock_url"):
            report.delay(1)

        assert desk.size() == 0


@pytest.fixture(params=["stopped", "silent"])
def nobody(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a store that is not there, or takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (port,) = free_ports(1) if request.param == "stopped" else [silent.getsockname()[1]]
        yield f"redis://127.0.0.1:{port}/0"


def test_without_an_answer_a_call_waits_and_is_published(nobody: str, desk: Desk) -> None:
    options = {"socket_connect_timeout": 0.2, "socket_timeout": 0.2}
    with open_desk(dlock_url=nobody, dlock_backend_options=options) as desk:
        report = maker(desk)()
        began = time.monotonic()

        results = [report.delay(1) for _ in range(2)]

        assert time.monotonic() - began < 5
        assert not any(result.is_duplicate for result in results)
        assert (desk.size(), len(desk.happened(Unavailable))) == (2, 2)
        assert desk.happened(Deduplicated) == []
        forget(desk.app)
