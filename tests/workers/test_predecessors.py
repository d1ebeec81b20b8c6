"""A task comes before the one that has published it has released the key: it waits for that."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextvars import Context
from typing import Any
from unittest.mock import Mock

import pytest
from celery import chain, chord, group, signals
from kombu.message import Message

from celery_dlock import (
    BackendUnavailable,
    Fail,
    LockedTask,
    Policy,
    Reschedule,
    Skip,
    Unique,
    Wait,
    lock,
)
from celery_dlock.core.events import Contended, Rescheduled
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim
from celery_dlock.delivery import plan
from celery_dlock.testing import ManualClock
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
def test_so_does_all_else_that_a_task_publishes(
    desk: Desk, early: Any, make: Make, canvas: str
) -> None:
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


@pytest.mark.parametrize(
    ("first", "second", "beside", "runs"),
    [
        pytest.param({"shared": True}, {}, None, True, id="reader, writer"),
        pytest.param({"shared": True}, {}, {"shared": True}, False, id="two readers, writer"),
        pytest.param({}, {"shared": True}, None, True, id="writer, reader"),
        pytest.param({"limit": 2}, {"limit": 2}, {"limit": 2}, True, id="limit"),
        pytest.param({"limit": 2}, {"limit": 1}, {"limit": 2}, False, id="smaller limit"),
    ],
)
def test_others_beside_it_are_a_reason(
    desk: Desk, early: Any, make: Make, first: Any, second: Any, beside: Any, runs: bool
) -> None:
    block = lock("order", app=desk.app, timeout=0, **(beside or {}))
    if beside:
        Context().run(block.acquire)

    steps = make(Fail(), "first", **first), make(Fail(), "second", **second)
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
    step, backend = make(Skip(), "step", limit=2), desk.store
    for task in ("parent:0:0", "other:0:0"):
        backend.enter(Claim("order", task, "nonce", ttl=SECOND, limit=2))
    desk.patch.setattr(backend, "look", Mock(side_effect=BackendUnavailable("away")))

    result = step.apply_async(parent_id="parent")
    desk.deliver()

    assert len(desk.happened(Rescheduled)) == desk.size() == 1
    assert result.state == "PENDING"


def test_a_task_that_has_no_part_in_it_is_refused_without_another_question(
    desk: Desk, make: Make
) -> None:
    step, backend = make(Skip(), "step", limit=2), desk.store
    for task in ("first:0:0", "second:0:0"):
        backend.enter(Claim("order", task, "nonce", ttl=SECOND, limit=2))
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
