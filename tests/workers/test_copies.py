"""Several messages of one task: the body runs once, and a copy never writes a result."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from celery import chain
from celery.exceptions import Ignore

from celery_dlock import Fail, LockedTask, Policy, Queue, Reschedule, Skip, Wait
from celery_dlock.core.events import Acquired, Dropped
from celery_dlock.testing import held_by_another
from tests.services.desk import Desk

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


@pytest.mark.parametrize("policy", [Reschedule(), Queue(), Queue(ordered="publish")], ids=repr)
def test_each_use_of_a_chain_runs_all_of_its_steps_and_a_copy_of_one_is_dropped(
    desk: Desk, policy: Policy
) -> None:
    @desk.locked("order", name="step", bind=True, max_retries=1, on_contention=policy)
    def step(self: Any, number: str) -> None:
        desk.ran.append(f"{number}, attempt {self.request.retries}")
        if number == "last" and not self.request.retries:
            raise self.retry(countdown=0)

    uses = chain(step.si("first"), step.si("last"))
    for _ in range(2):
        uses.apply_async()
        desk.deliver()
        if policy != Queue(ordered="publish"):
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
def test_a_retry_that_overtakes_its_own_first_attempt_is_not_contention(
    desk: Desk, policy: Policy
) -> None:
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
def test_a_replacement_that_overtakes_the_replaced_is_not_contention(
    desk: Desk, policy: Policy
) -> None:
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
