"""What a child tells of a delivery, as the worker's main process gets to read it."""

from __future__ import annotations

import gc
import logging
import pickle
from collections.abc import Callable, Iterator
from traceback import walk_tb
from typing import Any, Literal

import pytest
from billiard.einfo import ExceptionInfo, Traceback
from celery import signals
from celery.app import trace
from celery.exceptions import Ignore, Retry
from celery.worker import state as worker_state

from celery_dlock import LockedTask, Queue, Reschedule, lock
from celery_dlock.delivery.carry_out import is_parked, says_more, tell_briefly
from celery_dlock.delivery.execution import Execution
from celery_dlock.policies import Policy
from celery_dlock.worker.request import LockedRequest
from tests.services.desk import Desk
from tests.workers.conftest import charging, received


@pytest.fixture(autouse=True)
def briefly() -> Iterator[None]:
    tell_briefly()
    yield
    trace.ExceptionInfo = ExceptionInfo
    trace.logger.removeFilter(says_more)


def told(desk: Desk, task: LockedTask, *args: Any) -> tuple[int, ExceptionInfo]:
    """What the main process is sent when *task* is traced; of how many bytes, and what it reads."""
    task.delay(*args)
    message = desk.receive()
    request = LockedRequest(message, app=desk.app, task=task).request_dict
    tracer = trace.build_tracer(task.name, task, desk.app.loader, app=desk.app)
    retval = tracer(request["id"], args, {}, request).retval
    sent = pickle.dumps(retval)
    return len(sent), pickle.loads(sent)


@pytest.mark.parametrize(("policy", "raised"), [(Queue(), Ignore), (Reschedule(), Retry)])
def test_one_that_only_goes_elsewhere_takes_few_bytes(
    desk: Desk, policy: Any, raised: type[Exception]
) -> None:
    @desk.locked("order:{order}", on_contention=policy)
    def charge(order: str) -> None: ...

    with lock("order:42", app=desk.app, timeout=0):
        size, info = told(desk, charge, "42")

    assert size < 2000
    assert isinstance(info.exception, raised)
    assert str(info.exception) in str(info)
    assert info.tb is None
    assert is_parked(info.exception) is (raised is Ignore)


def test_one_that_fails_tells_all_there_is(desk: Desk) -> None:
    @desk.locked("order:{order}")
    def charge(order: str) -> None:
        raise ValueError("no such order")

    _, info = told(desk, charge, "42")

    assert isinstance(info.exception, ValueError)
    assert info.tb is not None
    assert 'raise ValueError("no such order")' in info.traceback


def test_so_does_what_the_body_itself_raises(desk: Desk) -> None:
    @desk.locked("order:{order}")
    def charge(order: str) -> None:
        raise Ignore("of its own")

    _, info = told(desk, charge, "42")

    assert info.tb is not None


@pytest.mark.parametrize("policy", [Queue(), Reschedule()])
def test_a_tool_in_the_child_can_tell_a_delivery_without_a_body(desk: Desk, policy: Any) -> None:
    @desk.locked("order:{order}", on_contention=policy)
    def charge(order: str) -> None:
        raise Ignore("of its own")

    before_body = []

    def ended(retval: Any = None, **_: Any) -> None:
        before_body.append(getattr(retval, "dlock_before_body", False))

    signals.task_postrun.connect(ended)
    charge.delay("42")
    with lock("order:42", app=desk.app, timeout=0):
        desk.deliver()
    desk.deliver()

    assert before_body == [True, False]


@pytest.mark.parametrize(
    ("policy", "line"),
    [
        (Queue(), "was refused and parked at 'order:42', which was held by lock() on "),
        (Reschedule(), "was rescheduled by "),
        ("skip", "was skipped: 'order:42' was held by lock() on "),
    ],
)
def test_what_became_of_it_is_one_line_of_ours_and_none_of_celerys(
    desk: Desk, caplog: pytest.LogCaptureFixture, policy: Any, line: str
) -> None:
    @desk.locked("order:{order}", on_contention=policy)
    def charge(order: str) -> None: ...

    caplog.set_level(logging.INFO)
    with lock("order:42", app=desk.app, timeout=0):
        told(desk, charge, "42")
        (record,) = [each for each in caplog.records if charge.name in each.getMessage()]
    assert line in record.getMessage()

    caplog.clear()
    told(desk, charge, "43")
    assert "succeeded in" in caplog.text


def test_celery_says_it_where_ours_is_unread(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    @desk.locked("order:{order}", on_contention=Queue())
    def charge(order: str) -> None: ...

    caplog.set_level(logging.INFO)
    desk.patch.setattr(logging.getLogger("celery_dlock"), "level", logging.WARNING)
    with lock("order:42", app=desk.app):
        told(desk, charge, "42")
    assert "ignored" in caplog.text


# Tools leave out the frames that say so: to them a trace begins with the body.


def shown(error: BaseException | None) -> list[str]:
    """The functions in the trace of *error* that do not ask to be left out."""
    assert error is not None
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    return [f.f_code.co_name for f in frames if not f.f_locals.get("__tracebackhide__")]


@pytest.fixture
def failures(desk: Desk) -> Iterator[list[list[str]]]:
    """What is shown of each failure, from where Celery calls the task."""
    found: list[list[str]] = []

    def failed(exception: BaseException | None = None, **_: Any) -> None:
        found.append(shown(exception)[1:])

    signals.task_failure.connect(failed)
    yield found
    signals.task_failure.disconnect(failed)


@pytest.mark.parametrize("on_lost", ["flag", "abort"])
def test_a_trace_begins_with_the_body(
    desk: Desk, failures: list[list[str]], on_lost: Literal["flag", "abort"]
) -> None:
    @desk.locked("order:{order}", on_lost=on_lost)
    def charge(order: str) -> None:
        raise ValueError("no such order")

    charge.delay("42")
    desk.deliver()
    assert failures == [["charge"]]

    with pytest.raises(ValueError, match="no such order") as caught:
        desk.app.tasks[charge.name]("42")
    assert shown(caught.value)[1:] == ["charge"]


def test_a_defect_of_the_library_keeps_its_frames(desk: Desk, failures: list[list[str]]) -> None:
    def broken(_: Execution) -> None:
        raise AssertionError("of ours")

    charge = charging(desk)
    desk.patch.setattr("celery_dlock.delivery.taking._take", broken)
    charge.delay("42")
    desk.deliver()
    assert failures == [["deliver", "take", "broken"]]


# The state of a task to those who follow Celery's events: Flower, exporters, `celery events`.


@pytest.fixture
def states(desk: Desk) -> Callable[[str], str]:
    """``states(task_id)``: by all events that were sent so far."""
    queue = desk.app.events.Receiver(desk.connection).queue(desk.channel)
    queue.declare()
    state = desk.app.events.State()

    def now(task_id: str) -> str:
        for message in iter(queue.get, None):
            state.event({**message.payload, "local_received": 0.0})
        return str(state.tasks[task_id].state)

    return now


def test_one_that_is_parked_is_not_shown_as_started(
    desk: Desk, states: Callable[[str], str]
) -> None:
    @desk.locked("order:{order}", on_contention=Queue(), bind=True)
    def charge(self: LockedTask, order: str) -> None:
        desk.ran.append(states(self.request.id))

    with lock("order:42", app=desk.app, timeout=0):
        result = charge.delay("42")
        desk.deliver()
        assert states(result.id) == "RETRY"

    desk.deliver()
    assert desk.ran == ["STARTED"]
    assert states(result.id) == "SUCCESS"


def test_nor_later_if_it_is_revoked(desk: Desk, states: Callable[[str], str]) -> None:
    charge = charging(desk, on_contention=Queue())
    with lock("order:42", app=desk.app, timeout=0):
        result = charge.delay("42")
        desk.deliver()
    worker_state.revoked.add(result.id)
    try:
        assert received(desk, desk.receive()).revoked()
    finally:
        worker_state.revoked.discard(result.id)

    assert states(result.id) == "REVOKED"


# A task that goes elsewhere leaves nothing in its worker, not even for the garbage collector.


def kept() -> list[object]:
    """Copied tracebacks and records of exceptions that are in memory; both tell their lies well."""
    ours = (ExceptionInfo, Traceback)
    return [found for found in gc.get_objects() if type(found) in ours]


def executions() -> list[object]:
    return [found for found in gc.get_objects() if type(found) is Execution]


@pytest.mark.parametrize("policy", [Queue(), Reschedule()])
def test_no_record_of_its_way_stays_in_memory(desk: Desk, policy: Policy) -> None:
    charge = charging(desk, on_contention=policy)
    others = kept()  # of other tests; alive as long as they are in this list
    before = {id(found) for found in others}
    with lock("order:42", app=desk.app, timeout=0):
        charge.delay("42")
        gc.disable()
        try:
            desk.deliver()

            assert [found for found in kept() if id(found) not in before] == []
        finally:
            gc.enable()


def test_no_record_of_a_delivery_stays_in_memory(desk: Desk) -> None:
    charge = charging(desk)
    others = executions()
    before = {id(found) for found in others}
    gc.disable()
    try:
        charge.delay("42")
        desk.deliver()

        assert [found for found in executions() if id(found) not in before] == []
    finally:
        gc.enable()
