"""A process that stood still, or was not told: what it notices before its body, and after it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from celery_dlock import Lease, LockedTask, LockLost, lock
from celery_dlock.core.events import Acquired, Event, Lost
from celery_dlock.core.state import Outcome
from celery_dlock.runtime import runtime
from tests.services.desk import Desk


@pytest.fixture
def pauses(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Once, for an hour, when a lock was given; the key that it was."""
    went_by: list[str] = []
    clock = time.clock_gettime

    def stand_still(event: Event) -> None:
        if isinstance(event, Acquired) and not went_by:
            went_by.extend(event.keys)

    monkeypatch.setattr(time, "clock_gettime", lambda which: clock(which) + 3600 * len(went_by))
    desk.app.conf.dlock_sinks = [*desk.app.conf.dlock_sinks, stand_still]
    return went_by


def test_a_task_goes_back_to_its_place_and_runs_then(desk: Desk, pauses: list[str]) -> None:
    ran = []

    @desk.locked("order:{order}", name="charge")
    def charge(order: str) -> str:
        ran.append(order)
        return "charged"

    result = charge.delay("42")
    desk.deliver()

    assert pauses == ["order:42"]
    assert ran == []
    assert result.state == "RETRY"
    desk.deliver()
    assert result.get() == "charged"
    assert runtime(desk.app).backend.peek("order:42").holders == ()


def test_a_call_and_a_block_raise(desk: Desk, pauses: list[str]) -> None:
    @desk.locked("order:{order}", name="charge")
    def charge(order: str) -> str:
        pytest.fail("somebody else may have the key")

    with pytest.raises(LockLost, match="not renewed in time"):
        charge("42")
    pauses.clear()
    with pytest.raises(LockLost), lock("order:42", app=desk.app):
        pytest.fail("somebody else may have the key")
    assert desk.holders("order:42") == []


def test_a_loss_that_shows_only_at_the_end_is_told_once(desk: Desk) -> None:
    told: list[tuple[str, ...]] = []

    class Alerting(LockedTask):
        abstract = True

        def on_lock_lost(self, lease: Lease, task_id: str, args: Any, kwargs: Any) -> None:
            told.append((lease.key, task_id, *args))

    @desk.locked("order:{order}", name="charge", base=Alerting)
    def charge(order: str, *, lease: Lease) -> str:
        (term,) = lease.terms
        runtime(desk.app).backend.leave(term.claim, Outcome.OVER)  # as a store that forgot it
        return "charged"

    result = charge.delay("42")
    desk.deliver()

    assert result.get() == "charged"
    assert told == [("order:42", result.id, "42")]
    assert [event.key for event in desk.happened(Lost)] == ["order:42"]
