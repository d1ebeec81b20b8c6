"""A task that ends because its key is taken has ended: a copy of it that comes later is dropped."""

from __future__ import annotations

from typing import Any

import pytest

from celery_dlock import (
    Contention,
    Fail,
    GiveUp,
    LockedTask,
    Queue,
    Reschedule,
    Skip,
    Wait,
    lock,
)
from celery_dlock.core.events import Contended, Dropped
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim, Outcome
from celery_dlock.runtime import runtime
from tests.services.desk import Desk
from tests.workers.conftest import nothing_is_left

pytestmark = pytest.mark.stores


class Breaks:
    """A policy of a project's own, with a defect."""

    def decide(self, contention: Contention) -> GiveUp:
        raise ZeroDivisionError

    def patience(self, attempt: int) -> float:
        return 60.0


ENDS = [
    (Fail(), "FAILURE"),
    (Skip(), "SUCCESS"),
    (Wait(timeout=0), "FAILURE"),
    (Reschedule(max_attempts=0), "FAILURE"),
    (Reschedule(max_wait=0), "FAILURE"),
    (Breaks(), "FAILURE"),
]


def charge_on(desk: Desk, ran: list[str], policy: Any, key: Any = "order:{order}") -> LockedTask:
    @desk.locked(key, name="charge", on_contention=policy)
    def charge(order: str) -> None:
        ran.append(order)

    return charge


@pytest.mark.parametrize(("policy", "ends"), ENDS, ids=lambda given: type(given).__name__)
def test_a_copy_does_not_run_after_the_key_was_refused_for_good(
    desk: Desk, ran: list[str], policy: Any, ends: str
) -> None:
    # Given a task that has ended because its key is taken
    charge = charge_on(desk, ran, policy)
    with lock("order:42", app=desk.app, timeout=0):
        result = charge.delay("42")
        desk.deliver()
    assert result.state == ends

    # When a copy of it comes, that somebody had prefetched, and the key is free
    charge.apply_async(("42",), task_id=result.id)
    desk.deliver()

    # Then it is dropped, And nothing is left
    assert ran == []
    assert [event.reason for event in desk.happened(Dropped)] == ["done"]
    assert desk.result(result.id).state == ends
    assert nothing_is_left(desk)


def test_nor_after_its_queue_was_full(desk: Desk, ran: list[str]) -> None:
    charge = charge_on(desk, ran, Queue(max_waiting=1))
    with lock("order:42", app=desk.app, timeout=0):
        charge.delay("42")
        desk.deliver()
        refused = charge.delay("42")
        desk.deliver()
    assert refused.state == "FAILURE"
    desk.deliver_all()

    charge.apply_async(("42",), task_id=refused.id)
    desk.deliver()

    assert ran == ["42"]
    assert nothing_is_left(desk)


@pytest.mark.parametrize("key", ["order:42", "stock:42"])
@pytest.mark.parametrize("then", ["order:42", "stock:42", "another"])
@pytest.mark.parametrize("policy", [Fail(), Reschedule(max_attempts=0)], ids=repr)
def test_of_several_keys_it_does_not_matter_which_was_refused(
    desk: Desk, ran: list[str], policy: Any, key: str, then: str
) -> None:
    # Given a task that one of its two keys was refused
    charge = charge_on(desk, ran, policy, ["stock:{order}", "order:{order}"])
    with lock(key, app=desk.app, timeout=0):
        result = charge.delay("42")
        desk.deliver()

    # Then a copy is dropped, be one of them free or the other or both, And does not fail again
    with lock(then, app=desk.app, timeout=0):
        charge.apply_async(("42",), task_id=result.id)
        desk.deliver()

    assert ran == []
    assert len(desk.happened(Contended)) == 1
    assert [event.reason for event in desk.happened(Dropped)] == ["done"]
    assert nothing_is_left(desk, "stock:42")
    assert nothing_is_left(desk, "order:42")


def said_of_one_refused(
    desk: Desk, charge: Any, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, Outcome]]:
    """What the store is told of a delivery of *charge* that ends because its key is taken."""
    store, said = runtime(desk.app).backend, list[tuple[str, Outcome]]()
    leave = store.leave

    def leaving(claim: Claim, outcome: Outcome, message: bytes | None = None) -> Any:
        said.append((claim.key, outcome))
        return leave(claim, outcome, message)

    with lock("order:42", app=desk.app, timeout=0):
        charge.delay("42")
        with monkeypatch.context() as patch:
            patch.setattr(store, "leave", leaving)
            desk.deliver()
    return said


def test_where_nothing_is_remembered_the_store_is_told_nothing(
    desk: Desk, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.app.conf.dlock_done_ttl = 0.0
    charge = charge_on(desk, ran, Fail())
    assert said_of_one_refused(desk, charge, monkeypatch) == []


def test_one_word_to_the_store_is_enough(
    desk: Desk, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    charge = charge_on(desk, ran, Fail(), ["stock:{order}", "order:{order}"])
    assert said_of_one_refused(desk, charge, monkeypatch) == [("order:42", Outcome.DONE)]


def test_a_task_that_runs_eagerly_has_no_copies(desk: Desk, ran: list[str]) -> None:
    charge = charge_on(desk, ran, Fail())
    store, other = (
        runtime(desk.app).backend,
        Claim("order:42", "other:0:0", "nonce", ttl=9 * SECOND),
    )
    store.enter(other)
    assert charge.apply(("42",), task_id="one").state == "FAILURE"
    store.leave(other, Outcome.OVER)

    assert charge.apply(("42",), task_id="one").state == "SUCCESS"
