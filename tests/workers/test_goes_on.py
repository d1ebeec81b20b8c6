"""A task goes on, and its next delivery waits behind the one before: that one takes nothing away.

Its message may be all that is left of the task: the delivery that waits was acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from celery.exceptions import Reject

from celery_dlock import LockedTask, Queue, StaleFencingToken, lock
from celery_dlock.core.state import Claim, EnterVerdict, LeaveVerdict, Outcome
from celery_dlock.errors import BackendUnavailable
from celery_dlock.locks import pending_releases
from celery_dlock.runtime import runtime
from celery_dlock.stores.base import LockBackend, Reply
from tests.services.desk import Desk
from tests.services.until import until

Ends = Callable[[], Exception]

#: Both mean that the task runs again.
AGAIN: list[Ends] = [
    lambda: StaleFencingToken("a", 1, 2),
    lambda: Reject("not now", requeue=True),
]


def charge_that(desk: Desk, ends: Ends, runs: list[int], keys: list[str]) -> LockedTask:
    """A task whose first run ends so."""

    @desk.locked(keys, name="charge", on_contention=Queue(), acks_late=True)
    def charge() -> str:
        runs.append(1)
        if len(runs) == 1:
            raise ends()
        return "ran"

    return charge


def store_of(desk: Desk) -> LockBackend:
    return runtime(desk.app).backend


def test_what_is_put_back_and_woken_at_once_waits_behind_the_keys_that_are_given_back_next(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a run that has lost its lock, and is slow between giving back its keys
    runs: list[int] = []
    store = store_of(desk)
    leave = store.leave

    def slowly(claim: Claim, outcome: Outcome, message: bytes | None = None) -> Reply[LeaveVerdict]:
        if claim.key == "b" and len(runs) == 1:
            desk.deliver()  # its message is woken from the queue of the first of them by now
            assert store.peek("b").parked == 1
        return leave(claim, outcome, message)

    monkeypatch.setattr(store, "leave", slowly)
    result = charge_that(desk, AGAIN[0], runs, ["a", "b"]).delay()
    desk.deliver()
    # Then it waits on, and runs
    desk.deliver_all()
    assert result.state == "SUCCESS"
    assert len(runs) == 2


@pytest.mark.parametrize("ends", AGAIN, ids=["lost", "rejected"])
def test_a_store_that_hears_late_that_the_run_before_has_left_keeps_what_waits(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, ends: Ends
) -> None:
    # Given a run that is to be repeated, and a store that does not hear that it has left
    runs: list[int] = []
    store = store_of(desk)
    leave, hears = store.leave, False

    def left(claim: Claim, outcome: Outcome, message: bytes | None = None) -> Reply[LeaveVerdict]:
        if claim.key == "b" and not hears:
            raise BackendUnavailable("no answer")
        return leave(claim, outcome, message)

    monkeypatch.setattr(store, "leave", left)
    monkeypatch.setattr(pending_releases, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(pending_releases, "LONGEST_PAUSE", 0.01)
    result = charge_that(desk, ends, runs, ["a", "b"]).delay()
    # When the next delivery waits behind it as the store hears it
    desk.deliver_all()
    assert store.peek("b").parked == 1
    hears = True
    until("it is woken", desk.size)
    assert not store.peek("b").holders
    # Then it runs
    desk.deliver_all()
    assert result.state == "SUCCESS"
    assert len(runs) == 2


def test_what_the_body_rejects_leaves_the_copy_that_waits_behind_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a copy that waits behind a run
    runs: list[int] = []

    def rejected_when_a_copy_waits() -> Exception:
        charge.apply_async(task_id=result.id)
        desk.deliver()
        assert store_of(desk).peek("a").parked == 1
        error: Exception = Reject("not now", requeue=True)
        return error

    charge = charge_that(desk, rejected_when_a_copy_waits, runs, ["a"])
    result = charge.delay()
    # When the run hands its message back, and the broker has it no more: on Redis the two are one,
    # and the copy's acknowledgement was that of both
    message = desk.take()
    assert message is not None
    monkeypatch.setattr(message, "reject_log_error", lambda *_: None)
    desk.run(message)
    # Then the copy runs
    desk.deliver_all()
    assert result.state == "SUCCESS"
    assert len(runs) == 2


def test_a_copy_that_waits_behind_a_key_goes_with_it_when_another_key_is_refused(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a copy that comes to wait at the first key before the second one is asked for
    runs: list[int] = []

    @desk.locked("b", name="ship", on_contention=Queue())
    def ship() -> None: ...

    @desk.locked(["a", "b"], name="charge", on_contention=Queue(max_waiting=1))
    def charge() -> None:
        runs.append(1)

    store = store_of(desk)
    enter = store.enter
    waited: list[object] = []

    def entered(claim: Claim, message: bytes | None = None) -> Reply[EnterVerdict]:
        if claim.key == "b" and message is not None and not waited:
            waited.append(desk.deliver())
            assert store.peek("a").parked == 1
        return enter(claim, message)

    with lock("b", app=desk.app, timeout=0):
        ship.delay()
        desk.deliver()
        # When that is refused for good, because too many wait for it
        monkeypatch.setattr(store, "enter", entered)
        result = charge.delay()
        charge.apply_async(task_id=result.id)
        desk.deliver()
        assert result.state == "FAILURE"
    # Then the copy does not run after that
    desk.deliver_all()
    assert store.peek("a").parked == 0
    assert runs == []
