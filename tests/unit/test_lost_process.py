"""What is recorded of a task whose process has ended, by who still has its message."""

from __future__ import annotations

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
from tests.services.desk import Desk

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
    asks = request._queueing()
    keeps = asks is not None and asks.keep
    who, here = f"{request.id}:0:0", runtime(desk.app)
    entry = ParkedMessage.of_delivery(here.wake.broker, who, delivery).encode({})
    mine = Claim("order:42", who, delivery["nonce"], ttl=10**9, wait=WaitMode.QUEUE, keep=keeps)
    assert isinstance(here.backend.enter(mine, entry).verdict, Run)


class Pool:
    """It ends nothing: the test says when the process is gone."""

    def terminate_job(self, pid: int, signal: int) -> None: ...


LOST, LIMIT = WorkerLostError("signal 9"), TimeLimitExceeded(1)
REJECTS = {"acks_late": True, "reject_on_worker_lost": True}
EARLY, LATE = {"acks_late": False}, {"acks_late": True}


@pytest.mark.parametrize(
    ("policy", "options", "stored", "ends", "state"),
    [
        pytest.param(KEEP, EARLY, True, LOST, "PENDING", id="the store has it"),
        pytest.param(KEEP, LATE, True, LOST, "PENDING", id="the store has it too"),
        pytest.param(KEEP, EARLY, False, LOST, "FAILURE", id="the store does not have it yet"),
        pytest.param(KEEP, LATE, False, LOST, "FAILURE", id="the store does not have it yet, late"),
        pytest.param(KEEP, REJECTS, False, LOST, "PENDING", id="the broker keeps it till then"),
        pytest.param(Queue(), REJECTS, False, LOST, "PENDING", id="the broker keeps it"),
        pytest.param(Queue(), EARLY, False, LOST, "FAILURE", id="nobody has it"),
        pytest.param(Queue(), LATE, False, LOST, "FAILURE", id="nobody has it, late"),
        pytest.param(Queue(), LATE, False, LIMIT, "FAILURE", id="a time limit"),
        pytest.param(KEEP, LATE, False, LIMIT, "FAILURE", id="a time limit of a kept one"),
    ],
)
def test_a_lost_process_is_a_failure_unless_store_or_broker_has_the_message(
    desk: Desk, policy: Any, options: dict[str, bool], stored: bool, ends: Exception, state: str
) -> None:
    request, message = accepted(desk, policy, **options)
    if stored:
        enters(desk, request)

    fails(request, ends)

    assert desk.result(request.id).state == state
    assert message.acknowledged
    assert desk.size() == 1 or options is not REJECTS
    if state == "PENDING":  # and then it runs
        request._child_is_gone()
        desk.deliver_all()
        assert desk.result(request.id).state == "SUCCESS"


@pytest.mark.parametrize("policy", [Queue(), KEEP])
@pytest.mark.parametrize("begun", [True, False])
def test_a_revocation_is_final_whoever_has_it(desk: Desk, policy: Any, begun: bool) -> None:
    request, message = accepted(desk, policy, acks_late=True)
    if not begun:
        request.time_start = None
    request.terminate(Pool())

    fails(request, Terminated(15))

    assert desk.result(request.id).state == "REVOKED"
    assert message.acknowledged


@pytest.mark.parametrize("exc", [WorkerLostError("signal 15"), Terminated(15)])
def test_what_was_terminated_does_not_run_again(desk: Desk, exc: Exception) -> None:
    request, message = accepted(desk, KEEP, **REJECTS)
    enters(desk, request)
    request.terminate(Pool())

    fails(request, exc)
    request._child_is_gone()

    assert message.acknowledged
    assert desk.deliver_all() == 0
    assert runtime(desk.app).backend.peek("order:42").parked == 0


@pytest.mark.parametrize("exc", [WorkerLostError("signal 15"), Terminated(15)])
def test_what_was_cancelled_runs_again_when_its_process_is_gone(desk: Desk, exc: Exception) -> None:
    request, message = accepted(desk, KEEP)
    enters(desk, request)
    assert message.acknowledged, "only the store has it"
    request.cancel(Pool())

    fails(request, exc)
    assert desk.size() == 0, "the body may still write"
    request._child_is_gone()

    desk.deliver_all()
    assert desk.result(request.id).state == "SUCCESS"


def test_an_unavailable_store_has_no_message(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    request, message = accepted(desk, KEEP)
    enters(desk, request)
    monkeypatch.setattr(runtime(desk.app).backend, "leave", raises(BackendUnavailable("no store")))

    fails(request, LOST)

    assert desk.result(request.id).state == "FAILURE"
    assert message.acknowledged


def test_an_unrecorded_failure_keeps_no_turn(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    error = TypeError("argument after ** must be a mapping")
    request = called(desk)
    monkeypatch.setattr(desk.app.backend, "mark_as_failure", raises(error))

    with pytest.raises(TypeError):
        fails(request, error)

    state = runtime(desk.app).backend.peek("order:42")
    assert (state.grants, state.holders) == ((), ())


def raises(error: Exception) -> Any:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize("policy", [Queue(), KEEP])
@pytest.mark.parametrize("late", [True, False])
def test_what_is_terminated_in_place_of_another_runs_again_if_anyone_has_its_message(
    desk: Desk, policy: Any, late: bool
) -> None:
    request, _ = accepted(desk, policy, acks_late=late)
    enters(desk, request)

    fails(request, Terminated(15))
    request._child_is_gone()

    lost = policy is not KEEP and not late
    assert desk.result(request.id).state == ("REVOKED" if lost else "PENDING")
    desk.deliver_all()
    assert desk.result(request.id).state == ("REVOKED" if lost else "SUCCESS")
    assert runtime(desk.app).backend.peek("order:42").holders == ()


@pytest.mark.parametrize("args", [(42,), ()], ids=["a key", "arguments that say no key"])
@pytest.mark.parametrize(("exc", "kept"), [(ValueError("not decoded"), 0), (LOST, 1)])
def test_a_turn_is_given_back_at_once_by_a_child_that_lives_and_else_when_it_is_gone(
    desk: Desk, exc: Exception, kept: int, args: tuple[int, ...]
) -> None:
    request = called(desk)
    request._request_dict["args"] = args

    fails(request, exc)
    assert len(runtime(desk.app).backend.peek("order:42").grants) == kept
    request._child_is_gone()

    assert desk.result(request.id).state == "FAILURE"
    assert runtime(desk.app).backend.peek("order:42").grants == ()


@pytest.mark.parametrize("args", [(42,), ()])
def test_what_is_revoked_early_gives_its_turn_back(desk: Desk, args: tuple[int, ...]) -> None:
    request = called(desk)
    request._request_dict["args"] = args
    request._announce_revoked("expired", False, None, True)
    assert runtime(desk.app).backend.peek("order:42").grants == ()


@pytest.mark.parametrize("exc", [WorkerLostError("signal 9"), TimeLimitExceeded(1)])
def test_a_process_whose_message_the_broker_keeps_is_no_end(desk: Desk, exc: Exception) -> None:
    # The message is not acknowledged for that
    request, message = accepted(desk, Queue(), acks_late=True, acks_on_failure_or_timeout=False)
    enters(desk, request)
    fails(request, exc)
    request._child_is_gone()
    assert message._state == "REJECTED"

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
