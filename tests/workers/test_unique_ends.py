"""When the claim of a unique task ends, and what leaves it standing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import states
from celery.exceptions import Ignore, Reject, TaskRevokedError
from celery.worker import state

from celery_dlock import (
    Fail,
    LockLost,
    LockTimeout,
    Ordered,
    Queue,
    Reschedule,
    Skip,
    Unique,
    Wait,
    lock,
)
from celery_dlock.core.events import Dropped
from celery_dlock.core.machine import MAX_LOST_RUNS
from celery_dlock.core.operations import Replay
from celery_dlock.core.state import Cause, Claim, Outcome
from celery_dlock.core.upkeep import WAKES_BEFORE_DEAD
from celery_dlock.runtime import runtime
from celery_dlock.testing import ManualClock
from tests.services.desk import Desk
from tests.services.unique import UNTIL, Make, claims, once_more, unheard
from tests.services.until import until as wait_until

pytestmark = pytest.mark.stores


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "woken"])
def test_until_start_it_ends_before_the_body(desk: Desk, make: Make, waits: bool) -> None:
    def calls(task: Any) -> bool:
        return bool(len(desk.ran) > 1 or task.delay(1).is_duplicate)

    make("start", calls, key="day:{day}", on_contention="queue").delay(1)
    if waits:
        with lock("day:1", app=desk.app, timeout=0):
            desk.deliver()

    assert desk.deliver_all() == 2
    assert desk.ran == [1, 1]


@UNTIL
@pytest.mark.parametrize("policy", [Reschedule(), Queue(), Queue(keep=True)], ids=repr)
def test_it_stays_while_the_task_waits_for_its_lock(
    desk: Desk, make: Make, until: str, policy: Any
) -> None:
    report = make(until, key="day:{day}", on_contention=policy)
    first = report.delay(1)
    with lock("day:1", app=desk.app, timeout=0):
        desk.deliver()
        held = desk.size()

        again = report.delay(1)

        assert (again.id, again.is_duplicate, desk.size()) == (first.id, True, held)
        if isinstance(policy, Queue):  # the store shows that it waits, however long
            unheard(desk.patch)
            assert report.delay(1).is_duplicate
            assert desk.size() == held
    desk.deliver_all()
    assert desk.ran == [1]
    assert claims(desk, report) is None


@UNTIL
@pytest.mark.parametrize("policy", [Skip(), Fail(), Wait(timeout=0.01)], ids=repr)
def test_it_ends_when_the_task_gives_up(desk: Desk, make: Make, until: str, policy: Any) -> None:
    report = make(until, key="day:{day}", on_contention=policy)
    report.delay(1)

    with lock("day:1", app=desk.app, timeout=0):
        desk.deliver()

    assert claims(desk, report) is None


@UNTIL
def test_it_ends_with_its_patience(desk: Desk, make: Make, clock: ManualClock, until: str) -> None:
    report = make(until, key="day:{day}", on_contention=Queue(max_wait=60))
    result = report.delay(1)
    desk.store.enter(Claim("day:1", "other:0:0", "1", ttl=10**9))
    desk.deliver()

    desk.passes(61)
    desk.deliver_all()

    assert isinstance(result.result, LockTimeout)
    assert claims(desk, report) is None


@pytest.mark.parametrize(("until", "attempt"), [("done", 0), ("start", 0), ("done", 1)])
@pytest.mark.parametrize("policy", ["fail", "queue", Ordered()], ids=repr)
def test_it_ends_when_a_call_under_the_id_of_a_finished_task_is_dropped(
    desk: Desk, make: Make, until: str, policy: Any, attempt: int
) -> None:
    report = make(until, key="day:{day}", on_contention=policy)
    for _ in range(2):
        report.apply_async((1,), task_id="one", retries=attempt)
        desk.deliver_all()

    assert [event.reason for event in desk.happened(Dropped)] == ["done"]
    assert (desk.ran, claims(desk, report)) == ([1], None)


def test_it_ends_also_where_the_clock_of_the_publisher_is_ahead(desk: Desk, make: Make) -> None:
    report = make("done")
    ahead = SimpleNamespace(time=lambda: time.time() + 60)
    desk.patch.setattr("celery_dlock.publishing.call.time", ahead)
    report.delay(1)
    desk.deliver_all()

    assert (desk.ran, claims(desk, report)) == ([1], None)


def test_a_retry_keeps_it(desk: Desk, make: Make) -> None:
    report = make("done", once_more)
    first = report.delay(1)
    desk.deliver()

    assert report.delay(1).id == first.id

    assert desk.deliver_all() == 1
    assert desk.ran == [1, 1]
    assert claims(desk, report) is None


def test_a_retry_of_what_has_started_asks_nobody(desk: Desk, make: Make) -> None:
    def first_once_more(task: Any) -> None:
        if not task.request.retries and len(desk.ran) == 1:
            raise task.retry(countdown=0)

    report = make("start", first_once_more)
    report.delay(1)
    desk.deliver()

    assert not report.delay(1).is_duplicate

    assert desk.deliver_all() == 2
    assert desk.ran == [1, 1, 1]


@UNTIL
@pytest.mark.parametrize(
    ("ends", "stays"),
    [
        (ValueError(), False),
        (Ignore(), False),
        (Reject("no", requeue=False), False),
        (Reject("no", requeue=True), True),
    ],
    ids=repr,
)
def test_a_body_that_breaks_off(
    desk: Desk, make: Make, until: str, ends: Exception, stays: bool
) -> None:
    def breaks_off(_: Any) -> None:
        raise ends

    report = make(until, breaks_off, acks_late=True)
    report.delay(1)

    desk.deliver()

    assert (claims(desk, report) is not None) is (stays and until == "done")


@UNTIL
def test_what_runs_again_for_its_lost_lock_keeps_it(desk: Desk, make: Make, until: str) -> None:
    def loses_it(task: Any) -> None:
        if len(desk.ran) == 1:
            raise LockLost("report")

    report = make(until, loses_it)
    first = report.delay(1)
    desk.deliver()

    claim = claims(desk, report)
    again = report.delay(1)

    assert (claim and claim.task) == (f"{first.id}:0:0" if until == "done" else None)
    assert again.is_duplicate is (until == "done")
    desk.deliver_all()
    assert desk.ran == ([1, 1] if until == "done" else [1, 1, 1])
    assert claims(desk, report) is None


def test_what_is_replaced_by_another_task_has_ended(desk: Desk, make: Make) -> None:
    @desk.app.task(name="other")
    def other() -> None: ...

    report = make("done", lambda task: task.replace(other.si()))
    report.delay(1)

    desk.deliver()

    assert claims(desk, report) is None
    assert desk.deliver_all() == 1


@pytest.mark.parametrize("unique", ["done", "start", Unique(period=3600)], ids=repr)
@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_a_message_that_is_revoked_or_expired_ends_it_for_it_never_began(
    desk: Desk, make: Make, unique: Any, how: str, revoked: Callable[[str], None]
) -> None:
    report = make(unique)
    first = report.apply_async((1,), expires=-1 if how == "expired" else None)
    if how == "revoked":
        revoked(first.id)

    with pytest.raises(TaskRevokedError):
        desk.deliver()

    assert desk.ran == []
    wait_until("the claim has ended", lambda: claims(desk, report) is None)


def test_so_it_does_if_the_task_is_revoked_as_it_waits_in_the_store(desk: Desk, make: Make) -> None:
    report = make(Unique(period=3600), on_contention="queue")
    first, here = report.delay(1), runtime(desk.app)
    with lock("report", app=desk.app, timeout=0):
        desk.deliver()
        for key, task in here.backend.parked([first.id]):
            here.wake(here.backend.cancel(key, task).wakes)
        desk.deliver()

    assert first.state == states.REVOKED
    assert claims(desk, report) is None


def test_but_not_if_a_retry_of_it_is(
    desk: Desk, make: Make, revoked: Callable[[str], None]
) -> None:
    report = make(Unique(period=3600), once_more)
    first = report.delay(1)
    desk.deliver()
    revoked(first.id)
    with pytest.raises(TaskRevokedError):
        desk.deliver()

    wait_until("the claim is over", lambda: (found := claims(desk, report)) and found.over)


@UNTIL
@pytest.mark.parametrize("another", [False, True], ids=["alone", "another lives"])
def test_what_is_dead_has_ended_and_asks_anew_when_it_is_replayed(
    desk: Desk, make: Make, until: str, another: bool
) -> None:
    report = make(until, on_contention="queue")
    first, store = report.delay(1), desk.store
    for run in range(MAX_LOST_RUNS):
        deadly = Claim("report", f"{first.id}:0:0", f"run {run}", ttl=10**9)
        store.enter(deadly)
        store.leave(deadly, Outcome.ABANDONED)
    desk.deliver()
    assert claims(desk, report) is None

    (letter,) = store.dead()
    runtime(desk.app).wake(store.apply(Replay("report", letter.dead.task)).wakes)
    replayed = desk.receive()
    if another:
        assert not report.delay(1).is_duplicate
        desk.deliver()
    desk.run(replayed)
    desk.deliver_all()

    assert desk.ran == [1]
    assert isinstance(desk.result(first.id).result, dict) is another
    assert claims(desk, report) is None


@UNTIL
def test_what_nobody_can_run_is_dead_and_answers_no_call(
    desk: Desk, make: Make, clock: ManualClock, until: str
) -> None:
    report = make(until, on_contention="queue")
    first, here = report.delay(1), runtime(desk.app)
    with lock("report", app=desk.app, timeout=0):
        desk.deliver()
    for _ in range(WAKES_BEFORE_DEAD):
        here.wake.dead_letter("report", f"{first.id}:0:0", "report", Cause.UNKNOWN_TASK)
        desk.passes(3600)

    assert [letter.dead.cause for letter in here.backend.dead()] == [Cause.UNKNOWN_TASK]
    assert not report.delay(1).is_duplicate


@pytest.fixture
def revoked() -> Iterator[Callable[[str], None]]:
    yield state.revoked.add
    state.revoked.clear()


def test_for_its_period_it_stays_although_it_is_done(desk: Desk, make: Make) -> None:
    report = make(Unique(period=3600))
    first = report.delay(1)
    desk.deliver()

    again = report.delay(1)

    assert (again.id, again.is_duplicate, again.get()) == (first.id, True, "1")
    assert (desk.size(), desk.ran) == (0, [1])
