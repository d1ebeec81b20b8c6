"""A task comes before the one that has published it has released the key: it waits for that."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import Context
from typing import Any
from unittest.mock import Mock

import pytest
from celery import chain, chord, group, signals
from celery.exceptions import Ignore
from kombu.message import Message

from celery_dlock import (
    BackendUnavailable,
    Fail,
    Limit,
    LockedTask,
    Ordered,
    Queue,
    Reschedule,
    Shared,
    Skip,
    Unique,
    Wait,
    lock,
)
from celery_dlock.core.events import Acquired, Contended, Dropped, Rescheduled
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim, Mode
from celery_dlock.delivery import plan
from celery_dlock.policies import Policy
from celery_dlock.testing import ManualClock, held_by_another
from tests.services.desk import Desk
from tests.services.until import until

REFUSING = [Fail(), Skip(), Wait(timeout=0), Reschedule(max_attempts=0), Reschedule(max_wait=0)]

Make = Callable[..., LockedTask]


@pytest.fixture
def early(desk: Desk) -> Iterator[list[threading.Thread]]:
    """Whatever a task publishes is delivered, and refused, before that task releases its key."""
    threads: list[threading.Thread] = []

    def run(message: Message) -> None:
        desk.app.set_current()  # which is a matter of the thread
        desk.run(message)

    def deliver(**_: Any) -> None:
        messages: list[Message] = []
        while (message := desk.take()) is not None:
            messages.append(message)
        refused = len(desk.happened(Contended)) + len(messages)
        for message in messages:
            threads.append(threading.Thread(target=run, args=(message,)))
            threads[-1].start()
        until("they are refused", lambda: len(desk.happened(Contended)) >= refused, 10)

    receivers = signals.task_postrun.receivers
    signals.task_postrun.connect(deliver)
    receivers.insert(0, receivers.pop())
    yield threads
    signals.task_postrun.disconnect(deliver)


def deliver_all(desk: Desk, early: list[threading.Thread]) -> None:
    """And wait for the threads, and those that they start."""
    while desk.size():
        desk.deliver()
        for thread in early:
            thread.join()


@pytest.fixture
def make(desk: Desk) -> Make:
    def make(policy: Policy, name: str, key: Any = "order", **options: Any) -> LockedTask:
        @desk.locked(key, name=name, on_contention=policy, **options)
        def step(*_: Any, fails: bool = False) -> None:
            desk.ran.append(name)
            if fails:
                raise ValueError(name)

        return step

    return make


@pytest.mark.parametrize("policy", REFUSING, ids=repr)
def test_the_next_step_of_a_chain_runs(desk: Desk, early: Any, make: Make, policy: Policy) -> None:
    first, second = make(policy, "first"), make(policy, "second")

    result = chain(first.si(), second.si(), first.si()).apply_async()
    deliver_all(desk, early)

    assert desk.ran == ["first", "second", "first"]
    assert (result.state, result.result) == ("SUCCESS", None)


@pytest.mark.parametrize(
    "canvas", ["link", "error callback", "group", "chord's body", "several keys"]
)
def test_so_does_all_that_a_task_publishes(desk: Desk, early: Any, make: Make, canvas: str) -> None:
    first, second = make(Fail(), "first"), make(Fail(), "second")
    two = make(Skip(), "two", key=["free", "order"])
    sent = make(Skip(), "second one", bind=True)

    canvases: dict[str, Callable[[], object]] = {
        "link": lambda: first.apply_async(link=second.si()),
        "error callback": lambda: first.apply_async(kwargs={"fails": True}, link_error=sent.s()),
        "group": lambda: chain(first.si(), group(second.si())).apply_async(),
        "chord's body": lambda: chord([first.si()], second.si()).apply_async(),
        "several keys": lambda: chain(two.si(), two.si()).apply_async(),
    }
    canvases[canvas]()
    deliver_all(desk, early)

    expected = {"several keys": ["two", "two"], "error callback": ["first", "second one"]}
    assert desk.ran == expected.get(canvas, ["first", "second"])


READS, TWO = Shared("order"), Limit("order", 2)


@pytest.mark.parametrize(
    ("first", "second", "beside", "runs"),
    [
        pytest.param(READS, "order", None, True, id="reader, writer"),
        pytest.param(READS, "order", READS, False, id="two readers, writer"),
        pytest.param("order", READS, None, True, id="writer, reader"),
        pytest.param(TWO, TWO, TWO, True, id="limit"),
        pytest.param(TWO, "order", TWO, False, id="smaller limit"),
    ],
)
def test_others_beside_it_are_a_reason(
    desk: Desk, early: Any, make: Make, first: Any, second: Any, beside: Any, runs: bool
) -> None:
    block = lock(beside or "order", app=desk.app, timeout=0)
    if beside:
        Context().run(block.acquire)

    steps = make(Fail(), "first", first), make(Fail(), "second", second)
    result = chain(steps[0].si(), steps[1].si()).apply_async()
    deliver_all(desk, early)

    assert desk.ran == ["first", "second"][: 1 + runs]
    assert result.state == ("SUCCESS" if runs else "FAILURE")
    if beside:
        block.release()


@pytest.mark.parametrize("policy", [Fail(), Skip()], ids=repr)
def test_the_step_of_one_that_was_killed_comes_back_when_its_lease_has_ended(
    desk: Desk, clock: ManualClock, make: Make, policy: Policy
) -> None:
    desk.patch.setattr(plan, "RELEASES_WITHIN", 0)
    first, second = make(policy, "first"), make(policy, "second")
    killed = Claim("order", "killed:0:0", "nonce", ttl=40 * SECOND, done_ttl=SECOND)
    desk.store.enter(killed)

    result = second.apply_async(parent_id="killed", root_id="killed")
    desk.deliver()
    (again,) = desk.happened(Rescheduled)
    assert (desk.ran, again.countdown) == ([], pytest.approx(40, abs=1))

    clock.advance(41)
    first.delay()
    desk.deliver_all()
    assert desk.ran == ["second", "first"]
    assert result.state == "SUCCESS"


def test_a_store_that_does_not_answer_then_refuses_nobody(desk: Desk, make: Make) -> None:
    desk.patch.setattr(plan, "RELEASES_WITHIN", 0)
    step, backend = make(Skip(), "step", TWO), desk.store
    for task in ("parent:0:0", "other:0:0"):
        backend.enter(Claim("order", task, "nonce", ttl=SECOND, mode=Mode.LIMITED, limit=2))
    desk.patch.setattr(backend, "look", Mock(side_effect=BackendUnavailable("away")))

    result = step.apply_async(parent_id="parent")
    desk.deliver()

    assert len(desk.happened(Rescheduled)) == desk.size() == 1
    assert result.state == "PENDING"


def test_a_task_without_a_part_in_it_is_refused_at_once(desk: Desk, make: Make) -> None:
    step, backend = make(Skip(), "step", TWO), desk.store
    for task in ("first:0:0", "second:0:0"):
        backend.enter(Claim("order", task, "nonce", ttl=SECOND, mode=Mode.LIMITED, limit=2))
    desk.patch.setattr(backend, "look", Mock(side_effect=AssertionError))

    result = step.delay()
    desk.deliver()

    assert result.get()["skipped"]


@pytest.mark.parametrize("unique", ["done", "start", Unique("done", period=60)], ids=repr)
@pytest.mark.parametrize("key", ["order", "step:{number}"])
def test_nor_is_it_the_task_of_which_a_unique_one_is_a_duplicate(
    desk: Desk, early: Any, unique: Any, key: str
) -> None:
    @desk.locked(key, name="step", unique=unique, on_contention="fail")
    def step(number: int) -> None:
        desk.ran.append(f"step {number}")

    result = chain(step.si(1), step.si(1)).apply_async()
    deliver_all(desk, early)

    assert (desk.ran, result.state, result.result) == (["step 1"] * 2, "SUCCESS", None)
    assert not step.delay(1).is_duplicate or isinstance(unique, Unique)


# Several messages of one task: the body runs once, and a copy never writes a result.


IMPATIENT = [Skip(), Fail(), Wait(timeout=0), Reschedule(max_attempts=0), Reschedule(max_wait=0)]


def charge_on(desk: Desk, **options: Any) -> LockedTask:
    @desk.locked("order:{order}", name="charge", **options)
    def charge(order: str, fails: bool = False) -> str:
        desk.ran.append(order)
        if fails:
            raise ValueError(order)
        return f"run {len(desk.ran)}"

    return charge


@pytest.mark.parametrize("acks_late", [True, False])
def test_a_copy_of_a_finished_task_is_dropped_and_leaves_the_result_alone(
    desk: Desk, acks_late: bool
) -> None:
    charge = charge_on(desk, acks_late=acks_late)
    result = charge.apply_async(("42",))
    desk.deliver()
    before = (result.state, result.get(), result.date_done)

    charge.apply_async(("42",), task_id=result.id)
    copy = desk.deliver()

    assert copy._state == "ACK"
    assert desk.ran == ["42"]
    assert (result.state, result.get(), result.date_done) == before
    assert [event.reason for event in desk.happened(Dropped)] == ["done"]
    assert desk.size() == 0


@pytest.mark.parametrize("policy", [Reschedule(), Queue(), Ordered()], ids=repr)
def test_each_use_of_a_chain_runs_all_of_its_steps(desk: Desk, policy: Policy) -> None:
    @desk.locked("order", name="step", bind=True, max_retries=1, on_contention=policy)
    def step(self: Any, number: str) -> None:
        desk.ran.append(f"{number}, attempt {self.request.retries}")
        if number == "last" and not self.request.retries:
            raise self.retry(countdown=0)

    uses = chain(step.si("first"), step.si("last"))
    for _ in range(2):
        uses.apply_async()
        desk.deliver()
        if policy != Ordered():
            with held_by_another("order", app=desk.app):  # it comes back, or waits and is woken
                desk.deliver()
        for _ in ("attempt", "retry"):
            message: Any = desk.take()
            copy = message.serializable()
            desk.run(message)
            desk.channel._put("celery.copies", copy)
            desk.deliver("celery.copies")
    assert desk.ran == ["first, attempt 0", "last, attempt 0", "last, attempt 1"] * 2
    assert [event.reason for event in desk.happened(Dropped)] == ["done"] * 4


@pytest.mark.parametrize(
    ("headers", "level"), [({}, "WARNING"), ({"dlock": {"waits": 1}}, "INFO")], ids=repr
)
def test_a_drop_that_may_be_wrong_is_a_warning_that_names_the_way_out(
    desk: Desk, caplog: pytest.LogCaptureFixture, headers: Any, level: str
) -> None:
    caplog.set_level("INFO", "celery_dlock")
    charge = charge_on(desk)
    signature = charge.si("42")
    signature.freeze("frozen")
    signature.apply_async()
    desk.deliver()
    caplog.clear()

    if headers:
        headers["dlock"]["task"] = "frozen:0:0"
    signature.apply_async(headers=headers)
    desk.deliver()

    (record,) = (r for r in caplog.records if "dropped at 'order:42'" in r.getMessage())
    assert record.levelname == level
    assert ("publish it under a new id" in record.getMessage()) == (level == "WARNING")
    assert desk.ran == ["42"]


@pytest.mark.parametrize("policy", IMPATIENT, ids=repr)
def test_a_copy_of_a_running_task_waits_and_writes_nothing(desk: Desk, policy: Policy) -> None:
    states: list[tuple[str, str]] = []

    @desk.locked("order:{order}", name="charge", acks_late=True, on_contention=policy)
    def charge(order: str) -> str:
        if not states:  # the broker delivers the message a second time while the body runs
            charge.apply_async((order,), task_id="one")
            copy = desk.deliver()
            states.append((desk.result("one").state, copy._state))
        return "ran"

    charge.apply_async(("42",), task_id="one")
    desk.deliver()
    assert states == [("PENDING", "ACK")]
    assert desk.result("one").get() == "ran"

    # The copy was kept: had the first one's worker died, it would have run
    again = desk.receive()
    assert again.headers["id"] == "one"
    assert again.headers["eta"] is not None
    assert again.headers["dlock"]["waits"] == 0
    desk.run(again)
    assert desk.result("one").get() == "ran"
    assert len(desk.happened(Acquired)) == 1
    assert desk.size() == 0


@pytest.mark.parametrize("policy", IMPATIENT, ids=repr)
def test_a_retry_before_its_first_attempt_is_no_contention(desk: Desk, policy: Policy) -> None:
    # With countdown=0 another process may have the next attempt while this one is still leaving
    attempts = []

    @desk.locked("order:{order}", name="charge", bind=True, on_contention=policy)
    def charge(self: Any, order: str) -> str:
        attempts.append(self.request.retries)
        if len(attempts) == 1:
            retry = self.retry(countdown=0, throw=False)
            desk.deliver()
            raise retry
        return "ran"

    result = charge.apply_async(("42",))
    desk.deliver_all()

    assert attempts == [0, 1]
    assert result.get() == "ran"


@pytest.mark.parametrize("policy", IMPATIENT, ids=repr)
def test_a_replacement_before_the_replaced_is_no_contention(desk: Desk, policy: Policy) -> None:
    class Overtaking(LockedTask):
        abstract = True

        def on_replace(self, sig: Any) -> Any:
            try:
                return super().on_replace(sig)
            finally:
                desk.deliver()

    @desk.locked("order:{order}", name="charge", bind=True, base=Overtaking, on_contention=policy)
    def charge(self: Any, order: str, part: int = 0) -> Any:
        if part == 0:
            return self.replace(charge.s(order, 1))
        return "ran"

    result = charge.apply_async(("42",))
    desk.deliver_all()

    assert result.get() == "ran"


@pytest.mark.parametrize("how", ["retry", "replace"])
def test_what_a_body_sends_under_its_own_id_is_no_copy_of_it(desk: Desk, how: str) -> None:
    parts = []

    @desk.locked("order:{order}", name="charge", bind=True, acks_late=True)
    def charge(self: Any, order: str, part: int = 0) -> str:
        parts.append(part)
        if part == 0 and how == "retry":
            self.retry((order, 1), countdown=0, throw=False)
        elif part == 0:
            with suppress(Ignore):
                self.replace(charge.s(order, 1))
        return f"part {part}"

    charge.apply_async(("42",))
    desk.deliver_all()

    assert parts == [0, 1]


def test_a_copy_of_what_was_replaced_is_dropped(desk: Desk) -> None:
    charge = charge_on(desk)

    @desk.locked("order:{order}", name="forwards", bind=True)
    def forwards(self: LockedTask, order: str) -> None:
        desk.ran.append("forwards")
        self.replace(charge.s(order))

    result = forwards.delay("42")
    desk.deliver()
    forwards.apply_async(("42",), task_id=result.id)
    desk.deliver_all()

    assert desk.ran == ["forwards", "42"]
