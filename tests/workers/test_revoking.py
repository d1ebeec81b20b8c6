"""A task that is revoked while it waits in the store ends as revoked, and at once."""

from __future__ import annotations

import pytest
from celery import chord, states
from celery.exceptions import TaskRevokedError
from celery.worker import state as worker_state

from celery_dlock import LockedTask, lock
from celery_dlock.core.events import Revoked
from celery_dlock.runtime import runtime
from celery_dlock.worker.periodic import EndRevoked
from tests.services.desk import Desk
from tests.services.lab import Lab
from tests.services.until import until
from tests.workers.conftest import MakeLab

pytestmark = pytest.mark.stores

KEY = "order:42"


@pytest.fixture
def charge(desk: Desk) -> LockedTask:
    @desk.locked("order:{order}", name="charge", on_contention="queue")
    def charge(order: str, number: int = 0) -> int:
        return number

    return charge


def end(desk: Desk, task_id: str) -> None:
    """What every worker does when it hears of a revocation."""

    class Worker:
        app = desk.app

    EndRevoked(Worker)._end({task_id})


def test_it_ends_while_the_key_is_held_and_the_next_one_keeps_its_turn(
    desk: Desk, charge: LockedTask
) -> None:
    # Given two that wait
    first, second = charge.delay("42", 1), charge.delay("42", 2)
    with lock(KEY, app=desk.app, timeout=0):
        desk.deliver()
        desk.deliver()

        # When the first is revoked
        end(desk, first.id)
        desk.deliver()

        # Then its result says so at once
        assert first.state == states.REVOKED
        with pytest.raises(TaskRevokedError):
            first.get()
        assert [event.key for event in desk.happened(Revoked)] == [KEY]

    # And the second has its turn
    desk.deliver()
    assert second.get() == 2
    assert desk.size() == 0


def test_its_copy_does_not_run_later(desk: Desk, charge: LockedTask) -> None:
    result = charge.delay("42", 1)
    with lock(KEY, app=desk.app, timeout=0):
        desk.deliver()
        end(desk, result.id)
        desk.deliver()

    charge.apply_async(("42", 1), task_id=result.id)
    desk.deliver()

    assert result.state == states.REVOKED


def test_one_that_was_woken_already_does_not_run(desk: Desk, charge: LockedTask) -> None:
    first, second = charge.delay("42", 1), charge.delay("42", 2)
    with lock(KEY, app=desk.app, timeout=0):
        desk.deliver()
        desk.deliver()
    end(desk, first.id)

    assert desk.deliver_all() == 2

    assert first.state == states.REVOKED
    assert second.get() == 2


def test_one_that_runs_goes_on(desk: Desk) -> None:
    @desk.locked("order:{order}", name="revokes_itself", bind=True, on_contention="queue")
    def revokes_itself(self: LockedTask, order: str) -> str:
        end(desk, self.request.id)
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
        end(desk, members[0].id)
    desk.deliver_all()

    assert result.state == states.FAILURE
    assert members[1].get() == 2


def test_a_name_that_is_a_part_of_another_is_not_meant(desk: Desk, charge: LockedTask) -> None:
    result = charge.apply_async(("42", 1), task_id="one:0:0")
    with lock(KEY, app=desk.app, timeout=0):
        desk.deliver()
        end(desk, "on")
        end(desk, "*")
    desk.deliver()

    assert result.get() == 1


def test_all_are_looked_for_at_once_twice_and_then_no_more(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Worker:
        app = desk.app

    def parked(task_ids: set[str]) -> list[tuple[str, str]]:
        asked.append((now[0], task_ids))
        return []

    step, now, asked = EndRevoked(Worker), [100.0], list[tuple[float, set[str]]]()
    monkeypatch.setattr("celery_dlock.worker.periodic.time.monotonic", lambda: now[0])
    monkeypatch.setattr(runtime(desk.app).backend, "parked", parked)
    monkeypatch.setattr(worker_state, "revoked", worker_state.LimitedSet())
    worker_state.revoked.update(["one", "two"])

    for second in range(60):
        now[0] = 100.0 + second
        if second == 5:
            worker_state.revoked.add("three")
        step.run_once()

    both, third = {"one", "two"}, {"three"}
    assert asked == [(100.0, both), (105.0, third), (110.0, both), (115.0, third)]


def test_what_is_revoked_again_after_it_was_forgotten_is_looked_for_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Worker:
        app = desk.app

    def parked(task_ids: set[str]) -> list[tuple[str, str]]:
        asked.append(task_ids)
        return []

    step, asked = EndRevoked(Worker), list[set[str]]()
    monkeypatch.setattr(runtime(desk.app).backend, "parked", parked)
    for revoked in (["one"], [], ["one"]):
        monkeypatch.setattr(worker_state, "revoked", worker_state.LimitedSet(data=revoked))
        step.run_once()

    assert asked == [{"one"}, {"one"}]


def test_of_a_task_without_a_result_nothing_is_stored(desk: Desk) -> None:
    @desk.locked("order:{order}", name="charge", on_contention="queue", ignore_result=True)
    def charge(order: str) -> None: ...

    result = charge.delay("42")
    with lock(KEY, app=desk.app, timeout=0):
        desk.deliver()
        end(desk, result.id)
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
