"""Whatever the publish of a running task's message raises: no task fails for it, none is lost."""

# mypy: allow-untyped-calls

from __future__ import annotations

import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from amqp.exceptions import AccessRefused, NotFound, PreconditionFailed, RecoverableConnectionError
from botocore.exceptions import ClientError
from celery.exceptions import SoftTimeLimitExceeded
from kombu.exceptions import EncodeError, OperationalError, SerializationError
from kombu.message import Message
from kombu.messaging import Producer

from celery_dlock import LockedTask, LockLost, lock
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
    ClientError({"Error": {"Code": "InvalidParameterValue"}}, "SendMessage"),
]


@pytest.fixture(autouse=True)
def no_pauses(desk: Desk) -> None:
    desk.patch.setattr(outgoing, "ROUND", 0.0)
    desk.patch.setattr(outgoing, "_STAYING", FullJitter(base=0.001, cap=0.001))
    desk.app.conf.task_publish_retry_policy = {"max_retries": 2, "interval_max": 0.0}


@pytest.fixture
def trouble(desk: Desk, clock: ManualClock) -> Trouble:
    trouble = Trouble(desk.patch)
    trouble.beset(desk.store)
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


def each(*errors: Exception) -> Any:
    """Rows of each way with the first of *errors*, and of the first way with each of them."""
    rows = [(way, errors[0]) for way in WAYS] + [(WAYS[0], error) for error in errors[1:]]
    ids = [f"{way}-{type(error).__name__}" for way, error in rows]
    return pytest.mark.parametrize(("way", "error"), rows, ids=ids)


def goes_on(case: Case, trouble: Trouble) -> None:
    """All is well again: the task is done, without a failure on its way, and nothing is left."""
    desk = case.desk
    assert case.result.state != "FAILURE"
    trouble.over()
    desk.passes(AN_HOUR)
    desk.deliver_all()
    assert case.result.get() == "done"
    twice = case.way not in ("reschedule", "come_back", "store_away")
    assert len(case.ran) == 1 + twice
    assert nothing_is_left(desk)
    assert desk.store.dead() == []


def in_store(desk: Desk) -> list[str]:
    state = desk.store.peek(KEY)
    waiting = [entry.task for entry in state.waiting if entry.parked]
    return [*waiting, *(turn.task for turn in state.grants if turn.parked)]


@each(*BROKERS, *MESSAGES)
def test_what_was_acknowledged_is_kept_in_the_store(
    desk: Desk, trouble: Trouble, way: str, error: Exception
) -> None:
    case = Case(desk, way, late=False)
    trouble.error = error
    message = case.deliver(trouble)

    assert message.acknowledged
    assert desk.size() == 0
    retries = int("retry" in way)
    assert in_store(desk) == [f"{case.result.id}:{retries}:0"]
    assert trouble.failed < 12
    goes_on(case, trouble)


@pytest.mark.stores
@pytest.mark.parametrize("way", WAYS)
def test_each_kind_of_store_keeps_it(desk: Desk, trouble: Trouble, way: str) -> None:
    case = Case(desk, way, late=False)
    trouble.error = OperationalError("away")
    case.deliver(trouble)
    assert len(in_store(desk)) == 1
    goes_on(case, trouble)


@pytest.mark.parametrize("keeps", [True, False], ids=["store", "no store"])
@each(*BROKERS)
def test_what_the_broker_has_still_goes_back_to_it(
    desk: Desk, trouble: Trouble, way: str, error: Exception, keeps: bool
) -> None:
    case = Case(desk, way, late=True)
    trouble.error, trouble.keeps = error, keeps
    message = case.deliver(trouble)

    assert message._state == "REJECTED"
    assert desk.size() == 1
    assert in_store(desk) == []
    assert trouble.failed < 6
    goes_on(case, trouble)


@each(*MESSAGES)
def test_what_is_at_fault_itself_does_not_go_round(
    desk: Desk, trouble: Trouble, way: str, error: Exception
) -> None:
    case = Case(desk, way, late=True)
    trouble.error = error
    message = case.deliver(trouble)

    assert message._state == "ACK"
    assert desk.size() == 0
    assert len(in_store(desk)) == 1
    goes_on(case, trouble)


@each(MESSAGES[0], MESSAGES[-1])
def test_without_a_store_it_goes_back_all_the_same(
    desk: Desk, trouble: Trouble, way: str, error: Exception
) -> None:
    case = Case(desk, way, late=True)
    trouble.error, trouble.keeps = error, False
    message = case.deliver(trouble)

    assert message._state == "REJECTED"
    assert desk.size() == 1
    goes_on(case, trouble)


@each(BROKERS[0], MESSAGES[-1])
@pytest.mark.parametrize("first", ["broker", "store"])
def test_what_nobody_else_has_stays_until_somebody_takes_it(
    desk: Desk, trouble: Trouble, way: str, error: Exception, first: str
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

        desk.patch.setattr(time, "sleep", pause)
    message = case.deliver(trouble)

    assert message.acknowledged
    assert (desk.size(), len(in_store(desk))) == ((1, 0) if first == "broker" else (0, 1))
    goes_on(case, trouble)


# A ``retry()`` that cannot be published: when it comes back, and with what.


def make(desk: Desk, trouble: Trouble, **how: Any) -> LockedTask:
    """A task whose first attempt calls ``retry(**how)`` while the broker takes nothing."""

    @desk.locked("order:{order}", name="charge", bind=True)
    def charge(self: Any, order: str, what: Any = None) -> str:
        desk.ran.append((order, what, self.request.retries))
        if not self.request.retries:
            trouble.error = OperationalError("away")
            raise self.retry(**{"countdown": 0, **how})
        return "done"

    return charge


def over(desk: Desk, trouble: Trouble) -> None:
    """All is well again, and a worker sweeps."""
    trouble.over()
    desk.passes(10)


@pytest.mark.parametrize("eta", [False, True], ids=["countdown", "eta"])
def test_what_was_parked_is_woken_when_it_is_due_and_holds_up_nobody_until_then(
    desk: Desk, trouble: Trouble, eta: bool
) -> None:
    # Given a retry for later that the store has to keep
    due = datetime.now(UTC) + timedelta(seconds=600)
    charge = make(desk, trouble, **({"eta": due} if eta else {"countdown": 600}))
    result = charge.delay("42")
    desk.deliver()
    assert result.state == "RETRY"
    # When the broker is back, others have the key meanwhile
    over(desk, trouble)
    assert desk.size() == 0
    with lock("order:42", app=desk.app, timeout=0):
        desk.passes(500)
    assert desk.size() == 0

    desk.passes(100)
    desk.deliver_all()

    assert result.get() == "done"
    assert desk.ran == [("42", None, 0), ("42", None, 1)]
    assert nothing_is_left(desk)


def test_it_comes_back_with_other_arguments(desk: Desk, trouble: Trouble) -> None:
    charge = make(desk, trouble, args=("43",), kwargs={"what": "other"})
    result = charge.delay("42", what="this")
    desk.deliver()
    over(desk, trouble)
    desk.deliver_all()

    assert result.get() == "done"
    assert desk.ran == [("42", "this", 0), ("43", "other", 1)]
    assert nothing_is_left(desk)
    assert nothing_is_left(desk, "order:43")


def test_unwritable_arguments_fail_visibly(desk: Desk, trouble: Trouble) -> None:
    result = make(desk, trouble, kwargs={"what": object()}).delay("42")
    trouble.tries = 0
    desk.deliver()

    assert result.state == "FAILURE"
    assert isinstance(result.result, EncodeError | TypeError)
    assert desk.size() == 0
    assert nothing_is_left(desk)


@pytest.mark.parametrize("late", [False, True])
def test_one_that_is_at_fault_too_fails_visibly(desk: Desk, trouble: Trouble, late: bool) -> None:
    desk.patch.setattr(type(desk.store), "largest_message", 10)

    @desk.locked("order:{order}", name="charge", bind=True, acks_late=late)
    def charge(self: Any, order: str) -> None:
        trouble.error = ValueError("a property is invalid")
        raise self.retry(countdown=0)

    result = charge.delay("42")
    assert desk.deliver().acknowledged

    assert result.state == "FAILURE"
    assert isinstance(result.result, ValueError)
    assert desk.size() == 0
    assert nothing_is_left(desk)


@pytest.mark.parametrize("late", [False, True])
def test_a_soft_time_limit_in_the_publish_reaches_the_body(desk: Desk, late: bool) -> None:
    def struck(*_: Any, **__: Any) -> None:
        raise SoftTimeLimitExceeded

    @desk.locked("order:{order}", name="charge", bind=True, acks_late=late)
    def charge(self: Any, order: str) -> str:
        try:
            with desk.patch.context() as patch:
                patch.setattr(Producer, "publish", struck)
                raise self.retry(countdown=0)
        except SoftTimeLimitExceeded:
            return "cleaned up"

    result = charge.delay("42")
    assert desk.deliver().acknowledged

    assert result.get() == "cleaned up"
    assert desk.size() == 0
    assert nothing_is_left(desk)


def test_a_soft_time_limit_after_the_publish_ends_nothing(desk: Desk) -> None:
    strikes = [SoftTimeLimitExceeded()]
    publish = Producer.publish

    def struck(*args: Any, **options: Any) -> None:
        publish(*args, **options)
        if len(published) == 1 and strikes:  # Celery's event about it
            raise strikes.pop()
        published.append(options)

    published: list[Any] = []
    desk.app.conf.task_send_sent_event = True

    @desk.locked("order:{order}", name="charge", bind=True)
    def charge(self: Any, order: str) -> str:
        if self.request.retries:
            return "done"
        desk.patch.setattr(Producer, "publish", struck)
        raise self.retry(countdown=0)

    result = charge.delay("42")
    desk.deliver()
    assert not strikes
    assert result.state == "RETRY"
    desk.deliver_all()
    assert result.get() == "done"


def test_who_publishes_after_it_finds_a_pool_that_is_whole(desk: Desk) -> None:
    desk.app.conf.broker_pool_limit = 1
    closed: list[Any] = []

    @desk.locked("order:{order}", name="charge", bind=True)
    def charge(self: Any, order: str) -> str:
        if not self.request.retries:
            # Given a connection of the pool whose channel is closed, as after a broker's restart
            with desk.app.producer_or_acquire() as producer:
                channel = producer.channel
            desk.patch.setattr(channel, "basic_publish", broken)
            raise self.retry(countdown=0)
        return "done"

    def broken(*_: Any, **__: Any) -> None:
        closed.append(1)
        raise AttributeError("'NoneType' object has no attribute 'client'")

    result = charge.delay("42")
    desk.deliver()
    assert closed == [1]
    for _ in range(3):
        charge.delay("43")
    assert closed == [1]
    desk.deliver_all()
    assert result.get() == "done"
