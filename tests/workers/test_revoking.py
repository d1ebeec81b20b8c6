"""A task that is revoked while it waits in the store ends as revoked, and at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import chord, states
from celery.exceptions import TaskRevokedError
from celery.worker import state as worker_state

from celery_dlock import LockedTask, lock
from celery_dlock.core.events import Revoked
from celery_dlock.core.state import Claim
from celery_dlock.runtime import runtime
from celery_dlock.worker.periodic import EndRevoked
from tests.services.desk import Desk
from tests.services.lab import Lab
from tests.services.until import until
from tests.workers.conftest import MakeLab, charging, revoke

pytestmark = pytest.mark.stores

KEY = "order:42"


@pytest.fixture
def charge(desk: Desk) -> LockedTask:
    @desk.locked("order:{order}", name="charge", on_contention="queue")
    def charge(order: str, number: int = 0) -> int:
        return number

    return charge


def test_it_ends_while_the_key_is_held(desk: Desk, charge: LockedTask) -> None:
    # Given two that wait
    first, second = charge.delay("42", 1), charge.delay("42", 2)
    with lock(KEY, app=desk.app, timeout=0):
        desk.deliver()
        desk.deliver()

        # When the first is revoked
        revoke(desk, first.id)
        desk.deliver()

        assert first.state == states.REVOKED
        with pytest.raises(TaskRevokedError):
            first.get()
        assert [event.key for event in desk.happened(Revoked)] == [KEY]

    # And the second has its turn
    desk.deliver()
    assert second.get() == 2
    assert desk.size() == 0


def test_one_that_runs_goes_on(desk: Desk) -> None:
    @desk.locked("order:{order}", name="revokes_itself", bind=True, on_contention="queue")
    def revokes_itself(self: LockedTask, order: str) -> str:
        revoke(desk, self.request.id)
        return "ran"

    result = revokes_itself.delay("42")
    desk.deliver()

    assert result.get() == "ran"


def test_a_chord_whose_member_is_revoked_ends(desk: Desk, charge: LockedTask) -> None:
    @desk.app.task(name="total")
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    result = chord([charge.s("42", 1), charge.s("42", 2)])(total.s())
    members = list(result.parent)
    with lock(KEY, app=desk.app, timeout=0):
        desk.deliver()
        desk.deliver()
        revoke(desk, members[0].id)
    desk.deliver_all()

    assert result.state == states.FAILURE
    assert members[1].get() == 2


def test_a_name_that_is_a_part_of_another_is_not_meant(desk: Desk, charge: LockedTask) -> None:
    result = charge.apply_async(("42", 1), task_id="one:0:0")
    with lock(KEY, app=desk.app, timeout=0):
        desk.deliver()
        revoke(desk, "on")
        revoke(desk, "*")
    desk.deliver()

    assert result.get() == 1


def test_all_are_looked_for_at_once_twice_and_then_no_more(desk: Desk) -> None:
    def parked(task_ids: set[str]) -> list[tuple[str, str]]:
        asked.append((now[0], task_ids))
        return []

    step, now, asked = (
        EndRevoked(SimpleNamespace(app=desk.app)),
        [100.0],
        list[tuple[float, set[str]]](),
    )
    desk.patch.setattr("celery_dlock.worker.periodic.time.monotonic", lambda: now[0])
    desk.patch.setattr(desk.store, "parked", parked)
    desk.patch.setattr(worker_state, "revoked", worker_state.LimitedSet())
    worker_state.revoked.update(["one", "two"])

    for second in range(60):
        now[0] = 100.0 + second
        if second == 5:
            worker_state.revoked.add("three")
        step.run_once()

    both, third = {"one", "two"}, {"three"}
    assert asked == [(100.0, both), (105.0, third), (110.0, both), (115.0, third)]


def test_what_is_revoked_again_after_it_was_forgotten_is_looked_for_again(desk: Desk) -> None:
    def parked(task_ids: set[str]) -> list[tuple[str, str]]:
        asked.append(task_ids)
        return []

    step, asked = EndRevoked(SimpleNamespace(app=desk.app)), list[set[str]]()
    desk.patch.setattr(desk.store, "parked", parked)
    for revoked in (["one"], [], ["one"]):
        desk.patch.setattr(worker_state, "revoked", worker_state.LimitedSet(data=revoked))
        step.run_once()

    assert asked == [{"one"}, {"one"}]


def test_of_a_task_without_a_result_nothing_is_stored(desk: Desk) -> None:
    charge = charging(desk, on_contention="queue", ignore_result=True)
    result = charge.delay("42")
    with lock(KEY, app=desk.app, timeout=0):
        desk.deliver()
        revoke(desk, result.id)
        desk.deliver()

    assert [event.key for event in desk.happened(Revoked)] == [KEY]
    assert desk.result(result.id).state == states.PENDING


@pytest.mark.slow
def test_it_stays_revoked_when_all_workers_are_started_anew(make_lab: MakeLab) -> None:
    lab: Lab = make_lab(lock={"policy": "queue"}, task={"acks_late": True})
    with lab.worker("prefork", concurrency=2) as worker:
        # Given a task that waits, And is revoked
        lab.app.tasks["apply"].delay("42", 0, hold="first")
        lab.journal.wait_for("start", number=0)
        revoked = lab.app.tasks["apply"].delay("42", 1)
        other = lab.app.tasks["apply"].delay("42", 2)
        store = runtime(lab.app).backend
        until("two wait", lambda: store.peek(KEY).parked == 2)
        lab.app.control.revoke(revoked.id)
        until("it is out of the queue", lambda: store.peek(KEY).parked == 1)
        worker.kill()

    # When the workers are started anew, Then it does not run, and says so
    with lab.worker("prefork", concurrency=2):
        lab.go("first")
        assert other.get(timeout=60) == 2
        with pytest.raises(TaskRevokedError):
            revoked.get(timeout=60)
    assert lab.journal.read("start", number=1) == []


# A task that waits in the store says so, where tasks report their state on the way.


def make(desk: Desk, **options: Any) -> LockedTask:
    @desk.locked("order:{order}", name="charge", on_contention="queue", **options)
    def charge(order: str) -> str:
        return order

    return charge


def test_it_says_for_what_it_waits_and_since_when(desk: Desk) -> None:
    result = make(desk, track_started=True).delay("42")

    with lock(KEY, app=desk.app, timeout=0):
        desk.deliver()
        assert result.state == "PARKED"
        assert result.info["key"] == KEY
        assert result.info["since"] > 0
        assert not result.ready()

    desk.deliver()
    assert result.state == states.SUCCESS


def test_it_is_said_before_the_message_is_in_the_store(desk: Desk) -> None:
    # Given somebody who runs the task as soon as its message is in the store
    result = make(desk, track_started=True).delay("42")
    store = desk.store
    enter, seen = store.enter, list[str]()

    def parks(claim: Claim, message: bytes | None = None) -> Any:
        reply = enter(claim, message)
        seen.append(f"{claim.wait}: {result.state}")
        return reply

    with lock(KEY, app=desk.app, timeout=0):
        desk.patch.setattr(store, "enter", parks)
        desk.deliver()

    # Then a state written now could no longer be written over a result
    assert seen == ["look: STARTED", "queue: PARKED"]


def test_a_copy_of_a_running_task_says_nothing_about_it(desk: Desk) -> None:
    # Given a task that runs, And its message is redelivered
    charge = make(desk, track_started=True)
    result = charge.delay("42")
    message = desk.receive()
    running = Claim(KEY, f"{result.id}:0:0", "another", ttl=10**9)
    desk.store.enter(running)
    desk.app.backend.store_result(result.id, {}, states.STARTED)

    desk.run(message)

    assert result.state == states.STARTED
    assert desk.store.peek(KEY).parked == 1


@pytest.mark.parametrize(
    ("options", "state"),
    [({}, states.PENDING), ({"track_started": True, "ignore_result": True}, states.PENDING)],
    ids=["by default", "without a result"],
)
def test_nothing_is_said_and_it_comes_with_its_message_only_where_it_waits(
    desk: Desk, options: dict[str, Any], state: str
) -> None:
    result = make(desk, **options).delay("42")
    store = desk.store
    enter, asked = store.enter, list[tuple[str, bool]]()

    def counted(claim: Claim, message: bytes | None = None) -> Any:
        asked.append((claim.wait, message is not None))
        return enter(claim, message)

    with lock(KEY, app=desk.app, timeout=0):
        desk.patch.setattr(store, "enter", counted)
        desk.deliver()

    assert result.state == state
    assert asked == [("look", False), ("queue", True)]


def test_a_result_backend_that_is_away_does_not_keep_a_task_from_waiting(desk: Desk) -> None:
    make(desk, track_started=True).delay("42")
    store_result = desk.app.backend.store_result

    def away(task_id: str, result: Any, state: str, *more: Any, **others: Any) -> Any:
        if state == "PARKED":
            raise ConnectionError("no result backend")
        return store_result(task_id, result, state, *more, **others)

    desk.patch.setattr(desk.app.backend, "store_result", away)
    with lock(KEY, app=desk.app, timeout=0):
        message = desk.deliver()
        assert desk.store.peek(KEY).parked == 1
    assert message.acknowledged
