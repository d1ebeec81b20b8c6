"""When a task is over: what is remembered, what is left over, what its lease still says."""

from __future__ import annotations

from typing import Any

import pytest
from celery import signals
from celery.exceptions import SoftTimeLimitExceeded

from celery_dlock import Lease, LockLost, lock
from celery_dlock.core.events import Lost
from celery_dlock.delivery.leaving import leave_after_result
from celery_dlock.runtime import runtime
from tests.services.desk import Desk, open_desk


def test_with_no_memory_of_what_is_done_the_copy_runs() -> None:
    with open_desk(dlock_done_ttl=0) as desk:
        runs: list[int] = []

        @desk.locked("order:{order}", name="charge")
        def charge(order: int) -> None:
            runs.append(order)

        for _ in range(2):
            charge.apply_async((42,), task_id="one-id")
        desk.deliver_all()

        assert runs == [42, 42]


def test_a_lock_whose_leaving_was_struck_goes_with_the_next_task(desk: Desk) -> None:
    @desk.locked("order:{order}", name="charge")
    def charge(order: int) -> None: ...

    # A soft time limit inside Celery's dispatch, before our receiver is reached
    signals.task_postrun.disconnect(leave_after_result)
    try:
        charge.delay(1)
        desk.deliver()
    finally:
        signals.task_postrun.connect(leave_after_result)
    assert len(desk.holders("order:1")) == 1

    charge.delay(2)
    desk.deliver()

    assert desk.holders("order:1") == []
    assert desk.holders("order:2") == []


def test_a_lock_whose_leaving_was_struck_after_it_was_free_is_not_told_as_lost(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    @desk.locked("order:{order}", name="charge")
    def charge(order: int) -> None: ...

    manager = runtime(desk.app).manager
    release = manager.release

    def struck(*args: Any) -> None:
        monkeypatch.setattr(manager, "release", release)
        release(*args)
        raise SoftTimeLimitExceeded

    monkeypatch.setattr(manager, "release", struck)
    charge.delay(42)
    desk.deliver()

    assert desk.holders("order:42") == []
    assert desk.happened(Lost) == []


def test_a_task_run_eagerly_by_a_body_leaves_the_body_its_lock(desk: Desk) -> None:
    @desk.locked("inner", name="inner")
    def inner() -> None: ...

    @desk.locked("outer", name="outer")
    def outer() -> int:
        inner.apply()
        return len(desk.holders("outer"))

    result = outer.delay()
    desk.deliver()

    assert result.get() == 1
    assert desk.holders("outer") == []


def test_a_lease_that_was_given_back_is_not_trusted_any_more(desk: Desk) -> None:
    kept: list[Lease] = []

    @desk.locked("order:{order}", name="charge")
    def charge(order: int, *, lease: Lease) -> None:
        kept.append(lease)

    charge.delay(1)
    desk.deliver()
    with lock("order:2", app=desk.app) as held:
        kept.append(held)
        assert not held.lost

    for lease in kept:
        assert lease.lost
        assert lease.remaining() == 0
        with pytest.raises(LockLost, match="released"):
            lease.check()
