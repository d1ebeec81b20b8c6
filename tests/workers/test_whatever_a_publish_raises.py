"""Whatever the publish of a running task's message raises: no task fails for it, none is lost."""

# mypy: allow-untyped-calls

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from amqp.exceptions import AccessRefused, NotFound, PreconditionFailed, RecoverableConnectionError
from kombu.exceptions import EncodeError, OperationalError, SerializationError
from kombu.message import Message

from celery_dlock import LockLost, lock
from celery_dlock.core.backoff import FullJitter
from celery_dlock.core.state import Claim, Outcome
from celery_dlock.delivery import outgoing
from celery_dlock.runtime import runtime
from celery_dlock.testing import ManualClock
from tests.services.desk import Desk
from tests.services.trouble import Trouble
from tests.workers.conftest import nothing_is_left

KEY = "order:42"
AN_HOUR = 3600

#: What the broker, or the way there, is to blame for.
BROKERS = [
    OperationalError("away"),
    ConnectionResetError("away"),
    RecoverableConnectionError("away"),
    AttributeError("'NoneType' object has no attribute 'client'"),
    RuntimeError("Acquire on closed pool"),
    AccessRefused("to this process"),
]
#: What the message, or where it goes, is to blame for.
MESSAGES = [
    ValueError("a number"),
    TypeError("a property"),
    KeyError("a queue"),
    EncodeError("cannot be written"),
    SerializationError("cannot be written"),
    NotFound("no exchange"),
    PreconditionFailed("too large"),
]


@pytest.fixture(autouse=True)
def no_pauses(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "ROUND", 0.0)
    monkeypatch.setattr(outgoing, "_STAYING", FullJitter(base=0.001, cap=0.001))
    desk.app.conf.task_publish_retry_policy = {"max_retries": 2, "interval_max": 0.0}


@pytest.fixture
def trouble(desk: Desk, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Trouble:
    trouble = Trouble(monkeypatch)
    trouble.beset(runtime(desk.app).backend)
    return trouble


class Case:
    """One way on which a task publishes its own message, once."""

    def __init__(self, desk: Desk, way: str, *, late: bool) -> None:
        self.desk, self.way = desk, way
        self.ran: list[int] = []
        policy = "queue" if way == "a queue's retry" else "reschedule"

        @desk.locked(
            "order:{order}",
            name="charge",
            acks_late=late,
            bind=True,
            on_contention=policy,
            autoretry_for=(KeyError,),
            retry_backoff=False,
            default_retry_delay=0,
        )
        def charge(task: Any, order: str) -> str:
            self.ran.append(task.request.retries)
            return self._first(task) if len(self.ran) == 1 else "done"

        self.result = charge.delay("42")

    def _first(self, task: Any) -> str:
        match self.way:
            case "retry" | "a queue's retry":
                raise task.retry(countdown=0)
            case "autoretry_for":
                raise KeyError("not yet")
            case "run_again":
                raise LockLost(KEY, "for this test")
            case _:
                return "done"

    def deliver(self, trouble: Trouble) -> Message:
        """The delivery whose message has to go on."""
        with ExitStack() as stack:
            if self.way == "reschedule":
                stack.enter_context(lock(KEY, app=self.desk.app, timeout=0))
            if self.way == "come_back":
                store = runtime(self.desk.app).backend
                other = Claim(KEY, f"{self.result.id}:0:0", "another delivery", ttl=10**9)
                store.enter(other)
                stack.callback(store.leave, other, Outcome.ABANDONED)
            trouble.answers = self.way != "store_away"
            return self.desk.deliver()


WAYS = [
    *("reschedule", "come_back", "store_away", "run_again"),
    *("retry", "a queue's retry", "autoretry_for"),
]


def name(error: Exception) -> str:
    return type(error).__name__


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def goes_on(desk: Desk, clock: ManualClock, trouble: Trouble) -> Callable[[Case], None]:
    """All is well again: the task is done, without a failure on its way, and nothing is left."""

    def check(case: Case) -> None:
        assert case.result.state != "FAILURE"
        trouble.over()
        clock.advance(AN_HOUR)
        runtime(desk.app).wake(runtime(desk.app).backend.sweep().wakes)
        desk.deliver_all()
        assert case.result.get() == "done"
        twice = case.way not in ("reschedule", "come_back", "store_away")
        assert len(case.ran) == 1 + twice
        assert nothing_is_left(desk)
        assert runtime(desk.app).backend.dead() == []

    return check


def in_store(desk: Desk) -> list[str]:
    state = runtime(desk.app).backend.peek(KEY)
    waiting = [entry.task for entry in state.waiting if entry.parked]
    return [*waiting, *(turn.task for turn in state.grants if turn.parked)]


@pytest.mark.parametrize("error", [*BROKERS, *MESSAGES], ids=name)
def test_what_was_acknowledged_is_kept_in_the_store(
    desk: Desk, trouble: Trouble, way: str, error: Exception, goes_on: Callable[[Case], None]
) -> None:
    case = Case(desk, way, late=False)
    trouble.error = error
    message = case.deliver(trouble)

    assert message.acknowledged
    assert desk.size() == 0
    retries = int("retry" in way)
    assert in_store(desk) == [f"{case.result.id}:{retries}:0"]
    assert trouble.failed < 12
    goes_on(case)


@pytest.mark.stores
def test_each_kind_of_store_keeps_it(
    desk: Desk, trouble: Trouble, way: str, goes_on: Callable[[Case], None]
) -> None:
    case = Case(desk, way, late=False)
    trouble.error = OperationalError("away")
    case.deliver(trouble)
    assert len(in_store(desk)) == 1
    goes_on(case)


@pytest.mark.parametrize("keeps", [True, False], ids=["store", "no store"])
@pytest.mark.parametrize("error", BROKERS, ids=name)
def test_what_the_broker_has_still_goes_back_to_it(
    desk: Desk,
    trouble: Trouble,
    way: str,
    error: Exception,
    keeps: bool,
    goes_on: Callable[[Case], None],
) -> None:
    case = Case(desk, way, late=True)
    trouble.error, trouble.keeps = error, keeps
    message = case.deliver(trouble)

    assert message._state == "REJECTED"
    assert desk.size() == 1
    assert in_store(desk) == []
    assert trouble.failed < 6
    goes_on(case)


@pytest.mark.parametrize("error", MESSAGES, ids=name)
def test_what_is_at_fault_itself_does_not_go_round(
    desk: Desk, trouble: Trouble, way: str, error: Exception, goes_on: Callable[[Case], None]
) -> None:
    case = Case(desk, way, late=True)
    trouble.error = error
    message = case.deliver(trouble)

    assert message._state == "ACK"
    assert desk.size() == 0
    assert len(in_store(desk)) == 1
    goes_on(case)


@pytest.mark.parametrize("error", MESSAGES[:1] + MESSAGES[-1:], ids=name)
def test_without_a_store_it_goes_back_all_the_same(
    desk: Desk, trouble: Trouble, way: str, error: Exception, goes_on: Callable[[Case], None]
) -> None:
    case = Case(desk, way, late=True)
    trouble.error, trouble.keeps = error, False
    message = case.deliver(trouble)

    assert message._state == "REJECTED"
    assert desk.size() == 1
    goes_on(case)


@pytest.mark.parametrize("error", [*BROKERS[:1], *MESSAGES[-1:]], ids=name)
@pytest.mark.parametrize("first", ["broker", "store"])
def test_what_nobody_else_has_stays_until_somebody_takes_it(
    desk: Desk,
    trouble: Trouble,
    way: str,
    error: Exception,
    first: str,
    monkeypatch: pytest.MonkeyPatch,
    goes_on: Callable[[Case], None],
) -> None:
    case = Case(desk, way, late=False)
    trouble.error, trouble.keeps = error, False
    if first == "broker":
        trouble.tries = 20
    else:
        sleep, pauses = time.sleep, list[float]()

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            trouble.keeps = len(pauses) > 20
            sleep(seconds)

        monkeypatch.setattr(time, "sleep", pause)
    message = case.deliver(trouble)

    assert message.acknowledged
    assert (desk.size(), len(in_store(desk))) == ((1, 0) if first == "broker" else (0, 1))
    goes_on(case)
