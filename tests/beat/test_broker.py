"""What keeps a tick from being sent: the broker, which costs the lead, or a defect of the entry."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn

import pytest
from celery.beat import BeatLazyFunc
from kombu.exceptions import OperationalError

from tests.beat.inside import at, dies
from tests.services.beats import Beats, beats
from tests.services.ports import free_ports
from tests.services.redis import RedisServer

pytestmark = [pytest.mark.once, pytest.mark.server("redis")]

Make = Callable[..., AbstractContextManager[Beats]]

TEN = {"ten": 10.0}


@pytest.fixture
def make(tmp_path: Path, redis_server: RedisServer) -> Make:
    """Three beats before a Redis, whose connection errors are the widest."""
    return lambda schedule, **config: beats(
        tmp_path, schedule, broker_url=redis_server.url, **config
    )


@pytest.fixture
def nowhere() -> str:
    """Where no broker listens."""
    (port,) = free_ports(1)
    return f"redis://127.0.0.1:{port}"


@pytest.mark.parametrize("error", [OSError, KeyError, OperationalError])
@pytest.mark.parametrize("where", ["args", "kwargs"])
def test_arguments_that_cannot_be_computed_keep_no_other_from_being_sent(
    make: Make, caplog: pytest.LogCaptureFixture, error: type[Exception], where: str
) -> None:
    def fails() -> NoReturn:
        raise error("the rates cannot be read")

    lazy: Any = [BeatLazyFunc(fails)] if where == "args" else {"rates": BeatLazyFunc(fails)}
    entries = {
        "a": {"task": "a", "schedule": 10.0, where: lazy},
        "b": {"task": "b", "schedule": 10.0},
    }
    with make({}, beat_schedule=entries) as of:
        of.tick(0)
        for _ in range(2):
            of.advance(10)
            of.tick(0)

        assert of.dues("a") == []
        assert of.dues("b") == [at(10), at(20)]
        assert of.leader() == 0
    assert "Couldn't compute the arguments of a: " in caplog.text


def test_arguments_are_computed_for_each_tick(make: Make) -> None:
    rates = iter([1.1, 1.2])
    entry = {"task": "a", "schedule": 10.0, "args": [BeatLazyFunc(next, rates), 2]}
    seen: list[Any] = []
    with make({}, beat_schedule={"a": entry}) as of:
        of.app.send_task = lambda _, args, *__, **___: seen.append(args)
        of.tick(0)
        for _ in range(2):
            of.advance(10)
            of.tick(0)

    assert seen == [[1.1, 2], [1.2, 2]]


@pytest.mark.parametrize("error", [OSError, KeyError])
def test_what_a_task_does_when_it_is_sent_is_not_the_broker_either(
    make: Make, error: type[Exception]
) -> None:
    def fails() -> NoReturn:
        raise error("a router's own error")

    with make({"a": 10.0, "b": 10.0}) as of:
        of.tick(0)
        of.faults["before it is published"] = fails
        of.advance(7)
        of.tick(0)

        assert len(of.sent) == 1
        assert of.leader() == 0


def test_a_broker_that_cannot_be_reached_leaves_nothing_in_doubt(make: Make, nowhere: str) -> None:
    with make(TEN) as of:
        there, of.app.conf.broker_url = of.app.conf.broker_url, nowhere
        of.tick(0)
        of.advance(7)
        of.tick_all()
        assert of.leader() is None
        of.app.conf.broker_url = there
        of.tick(1)

        assert of.dues("ten") == [at(10)]
        assert of.repeated() == {}


def test_a_doubt_is_told_when_it_is_sent_and_not_at_each_try(make: Make, nowhere: str) -> None:
    with make(TEN) as of:
        of.tick(0)
        of.advance(7)
        of.faults["after it was published"] = dies
        of.tick(0)
        there, of.app.conf.broker_url = of.app.conf.broker_url, nowhere
        of.tick_all()
        of.tick_all()
        assert of.repeated() == {}
        of.app.conf.broker_url = there
        of.tick(2)

        assert of.dues("ten") == [at(10), at(10)]
        assert of.repeated() == {("ten", at(10).isoformat()): 1}
