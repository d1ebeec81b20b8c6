"""A task goes on, and its next delivery waits behind the one before: that one takes nothing away.

Its message may be all that is left of the task: the delivery that waits was acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery.exceptions import Ignore, Reject

from celery_dlock import BackendUnavailable, LockedTask, Queue, StaleFencingToken, lock
from celery_dlock.core.machine import MAX_LOST_RUNS
from celery_dlock.core.operations import Replay
from celery_dlock.core.state import Cause, Claim, EnterVerdict, LeaveVerdict, Outcome, Run
from celery_dlock.locks import pending_releases
from celery_dlock.runtime import runtime
from celery_dlock.stores.base import Reply
from celery_dlock.testing import ManualClock
from tests.services.desk import Desk
from tests.services.until import until
from tests.workers.conftest import nothing_is_left

Ends = Callable[[], Exception]

#: Both mean that the task runs again.
AGAIN: list[Ends] = [lambda: StaleFencingToken("a", 1, 2), lambda: Reject("not now", requeue=True)]


def charge_that(desk: Desk, ends: Ends, keys: list[str]) -> LockedTask:
    """A task whose first run ends so."""

    @desk.locked(keys, name="charge", on_contention=Queue(), acks_late=True)
    def charge() -> str:
        desk.ran.append(1)
        if len(desk.ran) == 1:
            raise ends()
        return "ran"

    return charge


def test_what_is_put_back_and_woken_at_once_waits_behind_the_keys_that_are_given_back_next(
    desk: Desk,
) -> None:
    # Given a run that has lost its lock, and is slow between giving back its keys
    store = desk.store
    leave = store.leave

    def slowly(claim: Claim, outcome: Outcome, message: bytes | None = None) -> Reply[LeaveVerdict]:
        if claim.key == "b" and len(desk.ran) == 1:
            desk.deliver()  # its message is woken from the queue of the first of them by now
            assert store.peek("b").parked == 1
        return leave(claim, outcome, message)

    desk.patch.setattr(store, "leave", slowly)
    result = charge_that(desk, AGAIN[0], ["a", "b"]).delay()
    desk.deliver()
    desk.deliver_all()
    assert result.state == "SUCCESS"
    assert len(desk.ran) == 2


@pytest.mark.parametrize("ends", AGAIN, ids=["lost", "rejected"])
def test_a_store_that_hears_late_that_the_run_before_has_left_keeps_what_waits(
    desk: Desk, ends: Ends
) -> None:
    # Given a run that is to be repeated, and a store that does not hear that it has left
    store = desk.store
    leave, hears = store.leave, False

    def left(claim: Claim, outcome: Outcome, message: bytes | None = None) -> Reply[LeaveVerdict]:
        if claim.key == "b" and not hears:
            raise BackendUnavailable("no answer")
        return leave(claim, outcome, message)

    desk.patch.setattr(store, "leave", left)
    desk.patch.setattr(pending_releases, "FIRST_PAUSE", 0.01)
    desk.patch.setattr(pending_releases, "LONGEST_PAUSE", 0.01)
    result = charge_that(desk, ends, ["a", "b"]).delay()
    # When the next delivery waits behind it as the store hears it
    desk.deliver_all()
    assert store.peek("b").parked == 1
    hears = True
    until("it is woken", desk.size)
    assert not store.peek("b").holders
    desk.deliver_all()
    assert result.state == "SUCCESS"
    assert len(desk.ran) == 2


def test_what_the_body_rejects_leaves_the_copy_that_waits_behind_it(desk: Desk) -> None:
    # Given a copy that waits behind a run

    def rejected_when_a_copy_waits() -> Exception:
        charge.apply_async(task_id=result.id)
        desk.deliver()
        assert desk.store.peek("a").parked == 1
        error: Exception = Reject("not now", requeue=True)
        return error

    charge = charge_that(desk, rejected_when_a_copy_waits, ["a"])
    result = charge.delay()
    # When the run hands its message back, and the broker has it no more: on Redis the two are one,
    # and the copy's acknowledgement was that of both
    message = desk.receive()
    desk.patch.setattr(message, "reject_log_error", lambda *_: None)
    desk.run(message)
    desk.deliver_all()
    assert result.state == "SUCCESS"
    assert len(desk.ran) == 2


def test_a_copy_that_waits_behind_a_key_goes_with_it_when_another_key_is_refused(
    desk: Desk,
) -> None:
    # Given a copy that comes to wait at the first key before the second one is asked for

    @desk.locked(["a", "b"], name="charge", on_contention=Queue(max_waiting=1))
    def charge() -> None:
        desk.ran.append(1)

    store = desk.store
    enter = store.enter
    waited: list[object] = []

    def entered(claim: Claim, message: bytes | None = None) -> Reply[EnterVerdict]:
        if claim.key == "b" and message is not None and not waited:
            waited.append(desk.deliver())
            assert store.peek("a").parked == 1
        return enter(claim, message)

    with lock("b", app=desk.app, timeout=0):
        charge.delay()
        desk.deliver()
        # When that is refused for good, because too many of these calls wait for it
        desk.patch.setattr(store, "enter", entered)
        result = charge.delay()
        charge.apply_async(task_id=result.id)
        desk.deliver()
        assert result.state == "FAILURE"
    desk.deliver_all()
    assert store.peek("a").parked == 0
    assert desk.ran == [1]  # the first one


# A task is woken from its queue, and ends before it asks for its lock: its turn is the next's.


KEY = "order:42"

Raises = Callable[[Any], Exception | None]


class Preparing(LockedTask):
    """A project's base class that does something before each task."""

    abstract = True
    raises: Raises | None = None

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        if self.raises is not None and list(args) == ["42", 1]:
            error = self.raises(self)
            if error is not None:
                raise error


@pytest.fixture
def charge(desk: Desk) -> LockedTask:
    options = {"lock_key": "order:{order}", "lock_on_contention": Queue()}

    @desk.app.task(base=Preparing, name="charge", **options)
    def charge(order: str, number: int) -> None:
        desk.ran.append(number)

    task: LockedTask = charge
    return task


def two_that_wait(desk: Desk, charge: LockedTask) -> Any:
    """The result of the first of them, which has been woken."""
    with lock(KEY, app=desk.app, timeout=0):
        first = charge.delay("42", 1)
        charge.delay("42", 2)
        desk.deliver_all()
    return first


@pytest.mark.parametrize(
    ("raises", "state"),
    [(lambda _: ValueError("no connection"), "FAILURE"), (lambda _: Ignore(), "PENDING")],
    ids=["fails", "ignores"],
)
def test_what_ends_in_before_start_leaves_its_turn_to_the_next(
    desk: Desk, charge: LockedTask, raises: Raises, state: str
) -> None:
    first = two_that_wait(desk, charge)
    charge.raises = raises
    assert desk.deliver_all() == 2
    assert first.state == state
    assert desk.ran == [2]
    assert not desk.store.peek(KEY).grants


def test_what_retries_in_before_start_runs_once(desk: Desk, charge: LockedTask) -> None:
    two_that_wait(desk, charge)
    charge.raises = lambda task: None if task.request.retries else task.retry(countdown=0)
    desk.deliver_all()
    assert sorted(desk.ran) == [1, 2]
    assert not desk.store.peek(KEY).grants


def test_arguments_without_a_key_leave_the_turn(desk: Desk, charge: LockedTask) -> None:
    first = two_that_wait(desk, charge)
    old = type(charge.lock_definition).keys

    def of_a_new_version(definition: Any, args: Any, kwargs: Any) -> Any:
        if list(args) == ["42", 1]:
            raise KeyError("customer")
        return old(definition, args, kwargs)

    desk.patch.setattr(type(charge.lock_definition), "keys", of_a_new_version)
    assert desk.deliver_all() == 2
    assert first.state == "FAILURE"
    assert desk.ran == [2]
    assert not desk.store.peek(KEY).grants


def test_what_before_start_rejects_keeps_its_turn(desk: Desk, charge: LockedTask) -> None:
    # Given one that was acknowledged early: its only message is the store's
    first = two_that_wait(desk, charge)
    charge.raises = lambda _: Reject(requeue=True)
    assert desk.deliver_all() == 1
    assert [grant.task for grant in desk.store.peek(KEY).grants] == [f"{first.id}:0:0"]
    assert desk.ran == []


def test_a_task_that_has_no_lock_any_more_is_not_woken_again(
    desk: Desk, charge: LockedTask
) -> None:
    # Given a new version of it without a lock, while it waits
    first = two_that_wait(desk, charge)
    del desk.app.tasks["charge"]

    @desk.app.task(name="charge")
    def unlocked(order: str, number: int) -> None:
        if f"{first.id}:0:0" not in {grant.task for grant in desk.store.peek(KEY).grants}:
            desk.ran.append(number)

    assert desk.deliver_all() == 2
    assert desk.ran == [1, 2]
    assert not desk.store.peek(KEY).grants


# What befalls a queued task over and over: outages in the worst instant, a body that rejects.


@pytest.mark.parametrize("hears", [True, False], ids=["it hears", "it does not hear"])
def test_outages_as_the_key_is_given(desk: Desk, clock: ManualClock, hears: bool) -> None:
    """Those of which the store hears that they are over count once; others are lost runs."""

    @desk.locked("order:{order}", name="charge", on_contention="queue", acks_late=True)
    def charge(order: str) -> None:
        desk.ran.append(1)

    store = desk.store
    enter, leave = store.enter, store.leave

    def unheard(*args: Any) -> Any:
        assert isinstance(enter(*args).verdict, Run)
        raise BackendUnavailable("the answer was lost")

    def goes_away(*args: Any) -> Any:
        if hears:
            leave(*args)
        raise BackendUnavailable("away")

    result = charge.delay("42")
    for _ in range(MAX_LOST_RUNS):
        with desk.patch.context() as patch:
            patch.setattr(store, "enter", unheard)
            patch.setattr(store, "leave", goes_away)
            desk.deliver()
        clock.advance(60)  # its lease ends
    desk.deliver()

    if hears:
        assert desk.ran == [1]
        assert store.dead() == []
    else:
        assert desk.ran == []
        (letter,) = store.dead()
        assert (letter.dead.cause, result.state) == (Cause.RUNS_LOST, "FAILURE")
        runtime(desk.app).wake(store.apply(Replay(KEY, letter.dead.task)).wakes)
        desk.deliver()
        assert desk.ran == [1]
    assert nothing_is_left(desk)


def test_a_body_that_always_rejects_takes_every_second_turn(desk: Desk) -> None:
    @desk.locked("order:{order}", name="charge", on_contention="queue", acks_late=True)
    def charge(order: str, number: int) -> None:
        desk.ran.append(number)
        if number == 0:
            raise Reject("not now", requeue=True)

    with lock(KEY, app=desk.app, timeout=0):
        for number in range(4):
            charge.delay("42", number)
        for _ in range(4):
            desk.deliver()
    for _ in range(12):
        desk.deliver()

    others = [number for number in desk.ran if number]
    assert others == [1, 2, 3]
    assert desk.ran.index(3) <= 6
