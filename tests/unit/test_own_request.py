"""A ``Request`` of the project's own is called under a lock, too; a ``Strategy`` is refused."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest
from celery import Task
from celery.worker.request import Request

from celery_dlock import ConfigurationError, LockedTask
from celery_dlock.worker.request import LockedRequest
from tests.services.desk import Desk

calls: list[str] = []


class Hooks(Request):  # type: ignore[misc]
    """As Celery's user guide has it."""

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        calls.append("accepted")
        super().on_accepted(pid, time_accepted)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        calls.append("timeout")

    def on_failure(self, exc_info: Any, **options: Any) -> None:
        calls.append("failure")
        super().on_failure(exc_info, **options)


class Behind(Task):  # type: ignore[misc]
    Request = Hooks


class ByName(Task):  # type: ignore[misc]
    Request = f"{__name__}:Hooks"


class InFront(LockedTask):
    abstract = True
    Request = Hooks


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()


def charge(order: int) -> str:
    return "ran" if order else str(1 // order)


@pytest.mark.parametrize("base", [Behind, ByName, InFront])
def test_the_hooks_of_a_request_of_the_projects_are_called(desk: Desk, base: Any) -> None:
    task = desk.locked("order:{order}", name="charge", base=base)(charge)

    result, failed = task.delay(42), task.delay(0)
    desk.deliver_all()

    assert result.get() == "ran"
    assert failed.state == "FAILURE"
    assert calls == ["accepted", "accepted", "failure"]
    assert desk.holders("order:42") == desk.holders("order:0") == []


@pytest.mark.parametrize("base", [Behind, ByName, InFront, None])
def test_a_worker_takes_a_class_of_both(desk: Desk, base: Any) -> None:
    task = desk.locked("order:{order}", name="charge", **({"base": base} if base else {}))(charge)

    for _ in range(2):  # at each connection
        task.start_strategy(desk.app, MagicMock())

    made: Any = type(desk.app.tasks["charge"]).Request
    assert issubclass(made, LockedRequest)
    assert issubclass(made, Hooks) is (base is not None)
    assert base is None or made.on_timeout is Hooks.on_timeout
    assert base is None or made.__mro__.count(LockedRequest) == 1


class OwnStrategy(Task):  # type: ignore[misc]
    Strategy = "celery_batches:strategy"


class OwnStart(Task):  # type: ignore[misc]
    def start_strategy(self, *_: Any, **__: Any) -> None: ...


class LockedFirst(LockedTask):
    abstract = True
    Strategy = "celery_batches:strategy"


@pytest.mark.parametrize("base", [OwnStrategy, OwnStart, LockedFirst])
def test_a_strategy_of_its_own_is_refused(desk: Desk, base: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"charge: {base.__name__} has a Strategy of its"):
        desk.locked("order:{order}", name="charge", base=base)(charge)

    app = type(desk.app)("other", set_as_current=False, task_cls=base)
    app.conf.dlock_url = "memory://"
    app.task(base=base if base is LockedFirst else type("B", (LockedTask, base), {}))(charge)
    with pytest.raises(ConfigurationError, match=f"{base.__name__} has a Strategy of its own"):
        app.finalize()
    app.close()
