"""What is recorded of a task whose process has ended, by who still has its message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from celery.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from kombu.message import Message

from celery_dlock import BackendUnavailable, Queue, lock
from celery_dlock.core.state import Claim, Run, WaitMode
from celery_dlock.messages.envelope import ParkedMessage
from celery_dlock.runtime import runtime
from celery_dlock.worker.request import LockedRequest
from tests.services.desk import Desk, open_desk


@pytest.fixture
def desk() -> Iterator[Desk]:
    with open_desk() as made:
        yield made


KEEP = Queue(keep=True)


def accepted(desk: Desk, policy: Any, **options: Any) -> tuple[LockedRequest, Message]:
    """A request that a child has begun with."""

    @desk.locked("order:{order}", name="charge", on_contention=policy, **options)
    def charge(order: int) -> None: ...

    charge.delay(42)
    message = desk.take()
    assert message is not None
    return begun(desk, message), message


def begun(desk: Desk, message: Message) -> LockedRequest:
    request = LockedRequest(
        message,
        on_ack=message.ack_log_error,
        on_reject=message.reject_log_error,
        app=desk.app,
        hostname="desk",
        eventer=desk.eventer,
        task=desk.app.tasks["charge"],
        connection_errors=(OSError,),
    )
    request.on_accepted(4711, 0.0)
    return request


def called(desk: Desk, **options: Any) -> LockedRequest:
    """A request whose message has waited and was called, that a child has begun with."""

    @desk.locked("order:{order}", name="charge", on_contention="queue", **options)
    def charge(order: int) -> None: ...

    charge.delay(42)
    with lock("order:42", app=desk.app, timeout=0):
        desk.deliver()
    message = desk.take()
    assert message is not None
    return begun(desk, message)


def fails(request: LockedRequest, exc: BaseException) -> None:
    """As the pool says it."""
    try:
        raise exc
    except type(exc):
        request.on_failure(ExceptionInfo())


def enters(desk: Desk, request: LockedRequest) -> None:
    """What the child does before its body runs."""
    delivery = request._request_dict["dlock_delivery"]
    keeps = request._keeps()
    who, here = f"{request.id}:0:0", runtime(desk.app)
    entry = ParkedMessage.of_delivery(here.wake.broker, who, delivery).encode({})
    mine = Claim("order:42", who, delivery["nonce"], ttl=10**9, wait=WaitMode.QUEUE, keep=keeps)
    assert isinstance(here.backend.enter(mine, entry).verdict, Run)


@pytest.mark.parametrize("late", [True, False])
def test_a_lost_process_is_no_failure_while_the_store_has_the_message(
    desk: Desk, late: bool
) -> None:
    request, message = accepted(desk, KEEP, acks_late=late)
    enters(desk, request)

    fails(request, WorkerLostError("signal 9"))

    assert desk.result(request.id).state == "PENDING"
    assert message.acknowledged
    # And it is called at once, and runs
    desk.deliver_all()
    assert desk.result(request.id).state == "SUCCESS"


def test_a_message_for_which_celery_cannot_record_the_failure_keeps_no_turn(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = called(desk)
    monkeypatch.setattr(desk.app.backend, "mark_as_failure", unwilling)

    with pytest.raises(TypeError):
        fails(request, TypeError("argument after ** must be a mapping"))

    state = runtime(desk.app).backend.peek("order:42")
    assert (state.grants, state.holders) == ((), ())


def unwilling(*_: object, **__: object) -> None:
    raise TypeError("argument after ** must be a mapping")


class Pool:
    """It ends nothing: the test says when the process is gone."""

    def terminate_job(self, pid: int, signal: int) -> None: ...


@pytest.mark.parametrize("exc", [WorkerLostError("signal 15"), Terminated(15)])
def test_what_was_terminated_does_not_run_again_though_the_store_has_it(
    desk: Desk, exc: Exception
) -> None:
    request, message = accepted(desk, KEEP, acks_late=True, reject_on_worker_lost=True)
    enters(desk, request)

    request.terminate(Pool())
    fails(request, exc)
    request._child_is_gone()

    assert message.acknowledged
    assert desk.deliver_all() == 0
    assert runtime(desk.app).backend.peek("order:42").parked == 0


@pytest.mark.parametrize("exc", [WorkerLostError("signal 15"), Terminated(15)])
def test_what_was_cancelled_runs_again_when_its_process_is_gone(desk: Desk, exc: Exception) -> None:
    # Given a message that only the store has, whose task is cancelled as a connection breaks
    request, message = accepted(desk, KEEP)
    enters(desk, request)
    assert message.acknowledged
    request.cancel(Pool())

    # When it says so, it may still write
    fails(request, exc)
    assert desk.size() == 0

    # Then it runs when it cannot
    request._child_is_gone()
    desk.deliver_all()
    assert desk.result(request.id).state == "SUCCESS"


@pytest.mark.parametrize("late", [True, False])
def test_a_process_that_is_lost_before_the_store_has_the_message_is_a_failure(
    desk: Desk, late: bool
) -> None:
    request, message = accepted(desk, KEEP, acks_late=late)
    fails(request, WorkerLostError("signal 9"))
    assert desk.result(request.id).state == "FAILURE"
    assert message.acknowledged


def test_nor_is_one_lost_then_that_the_broker_keeps(desk: Desk) -> None:
    request, _ = accepted(desk, KEEP, acks_late=True, reject_on_worker_lost=True)
    fails(request, WorkerLostError("signal 9"))
    assert desk.result(request.id).state == "PENDING"
    assert desk.size() == 1


def test_a_store_that_is_away_has_no_message(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    request, message = accepted(desk, KEEP)
    enters(desk, request)

    def away(*_: object) -> None:
        raise BackendUnavailable("no store")

    monkeypatch.setattr(runtime(desk.app).backend, "leave", away)
    fails(request, WorkerLostError("signal 9"))
    assert desk.result(request.id).state == "FAILURE"
    assert message.acknowledged


def test_nor_while_the_broker_has_it(desk: Desk) -> None:
    request, _ = accepted(desk, Queue(), acks_late=True, reject_on_worker_lost=True)
    fails(request, WorkerLostError("signal 9"))
    assert desk.result(request.id).state == "PENDING"
    assert desk.size() == 1
    # And it runs when it comes back
    request._child_is_gone()
    desk.deliver_all()
    assert desk.result(request.id).state == "SUCCESS"


@pytest.mark.parametrize("late", [True, False])
def test_a_lost_process_whose_message_is_gone_is_a_failure(desk: Desk, late: bool) -> None:
    request, message = accepted(desk, Queue(), acks_late=late)
    fails(request, WorkerLostError("signal 9"))
    assert desk.result(request.id).state == "FAILURE"
    assert message.acknowledged


@pytest.mark.parametrize("policy", [Queue(), KEEP])
def test_a_time_limit_is_final_whoever_has_the_message(desk: Desk, policy: Any) -> None:
    request, message = accepted(desk, policy, acks_late=True)
    fails(request, TimeLimitExceeded(1))
    assert desk.result(request.id).state == "FAILURE"
    assert message.acknowledged


@pytest.mark.parametrize("policy", [Queue(), KEEP])
def test_a_revocation_is_final_whoever_has_the_message(desk: Desk, policy: Any) -> None:
    request, message = accepted(desk, policy, acks_late=True)
    request.terminate(Pool())
    fails(request, Terminated(15))
    assert desk.result(request.id).state == "REVOKED"
    assert message.acknowledged


@pytest.mark.parametrize("policy", [Queue(), KEEP])
@pytest.mark.parametrize("late", [True, False])
def test_what_is_terminated_in_place_of_another_runs_again_if_anyone_has_its_message(
    desk: Desk, policy: Any, late: bool
) -> None:
    # Given a child that is terminated for what it had just ended, and has begun with this one
    request, _ = accepted(desk, policy, acks_late=late)
    enters(desk, request)

    fails(request, Terminated(15))
    request._child_is_gone()

    # Then it runs again, unless nobody has its message
    lost = policy is not KEEP and not late
    assert desk.result(request.id).state == ("REVOKED" if lost else "PENDING")
    desk.deliver_all()
    assert desk.result(request.id).state == ("REVOKED" if lost else "SUCCESS")
    assert runtime(desk.app).backend.peek("order:42").holders == ()


def test_what_is_terminated_before_its_child_has_begun_does_not_run_again(desk: Desk) -> None:
    request, message = accepted(desk, Queue(), acks_late=True)
    request.time_start = None
    request.terminate(Pool())
    fails(request, Terminated(15))
    assert desk.result(request.id).state == "REVOKED"
    assert message.acknowledged


def test_what_a_child_that_lives_could_not_begin_gives_its_turn_back_at_once(desk: Desk) -> None:
    request = called(desk)
    fails(request, ValueError("this cannot be decoded"))
    assert desk.result(request.id).state == "FAILURE"
    assert runtime(desk.app).backend.peek("order:42").grants == ()


def test_a_process_that_is_lost_keeps_its_turn_until_it_is_gone(desk: Desk) -> None:
    request = called(desk)
    fails(request, WorkerLostError("signal 9"))
    assert len(runtime(desk.app).backend.peek("order:42").grants) == 1
    request._child_is_gone()
    assert runtime(desk.app).backend.peek("order:42").grants == ()


@pytest.mark.parametrize("exc", [ValueError("not decoded"), WorkerLostError("signal 9")])
def test_the_turn_is_given_back_also_when_the_arguments_say_no_key(
    desk: Desk, exc: Exception
) -> None:
    request = called(desk)
    request._request_dict["args"] = ()
    fails(request, exc)
    request._child_is_gone()
    assert runtime(desk.app).backend.peek("order:42").grants == ()


@pytest.mark.parametrize("args", [(42,), ()])
def test_what_is_revoked_before_it_begins_gives_its_turn_back(
    desk: Desk, args: tuple[int, ...]
) -> None:
    request = called(desk)
    request._request_dict["args"] = args
    request._announce_revoked("expired", False, None, True)
    assert runtime(desk.app).backend.peek("order:42").grants == ()


@pytest.mark.parametrize("exc", [WorkerLostError("signal 9"), TimeLimitExceeded(1)])
def test_a_lost_process_whose_message_the_broker_keeps_is_not_the_end(
    desk: Desk, exc: Exception
) -> None:
    # Given a body whose process is lost, And a message that is not acknowledged for that
    request, message = accepted(desk, Queue(), acks_late=True, acks_on_failure_or_timeout=False)
    enters(desk, request)
    fails(request, exc)
    request._child_is_gone()
    assert message._state == "REJECTED"

    # Then it runs when it comes again
    again(desk, request)
    assert desk.result(request.id).state == "SUCCESS"


def test_nor_is_it_where_the_child_could_not_begin_and_its_turn_is_given_back(desk: Desk) -> None:
    request = called(desk, acks_late=True, acks_on_failure_or_timeout=False)
    fails(request, ValueError("this cannot be decoded"))
    assert runtime(desk.app).backend.peek("order:42").grants == ()

    again(desk, request)
    assert desk.result(request.id).state == "SUCCESS"


def again(desk: Desk, request: LockedRequest) -> None:
    """Deliver what was rejected, as from a dead-letter queue."""
    if not desk.size():
        desk.app.tasks["charge"].apply_async((42,), task_id=request.id)
    desk.deliver_all()
