"""A soft time limit strikes between any two lines; nothing may stay held, or be called done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from celery import signals

from celery_dlock import Lease, LockedTask, LockLost, lock
from celery_dlock.core.events import Lost
from celery_dlock.core.state import Outcome
from celery_dlock.locks.manager import LockManager
from celery_dlock.locks.unique import UniqueClaims
from celery_dlock.runtime import runtime
from celery_dlock.tasks.task import leave_after_result
from tests.services.desk import Desk, open_desk


def strike_once(monkeypatch: pytest.MonkeyPatch, method: str, *, before: bool) -> None:
    """The limit strikes as *method* of the manager is called, or as it has returned."""
    real: Callable[..., Any] = getattr(LockManager, method)
    struck: list[bool] = []

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if struck:
            return real(*args, **kwargs)
        struck.append(True)
        if not before:
            real(*args, **kwargs)
        raise SoftTimeLimitExceeded

    monkeypatch.setattr(LockManager, method, interrupted)


@pytest.mark.parametrize(("method", "before"), [("acquire", False), ("release", True)])
def test_a_block_that_is_struck_while_it_takes_or_leaves_holds_nothing(
    monkeypatch: pytest.MonkeyPatch, method: str, before: bool
) -> None:
    with open_desk() as desk:
        strike_once(monkeypatch, method, before=before)

        with pytest.raises(SoftTimeLimitExceeded), lock("order:42", app=desk.app, timeout=0):
            pass

        assert desk.holders("order:42") == []
        assert runtime(desk.app).manager._keeper._watches == {}


@pytest.mark.parametrize("woken", [False, True], ids=["it has the key", "it was woken"])
def test_a_limit_that_strikes_as_a_unique_claim_ends_leaves_the_key_free(
    monkeypatch: pytest.MonkeyPatch, woken: bool
) -> None:
    errors: list[Exception] = []

    def before_start(*_: Any) -> None:
        for error in errors:
            raise error

    options = {"unique": "done", "on_contention": "queue", "before_start": before_start}
    with open_desk() as desk:

        @desk.locked("order:42", name="charge", **options)
        def charge() -> None: ...

        charge.delay()
        if woken:  # and ends before it has asked for its key
            with lock("order:42", app=desk.app, timeout=0):
                desk.deliver()
            errors.append(ValueError("not today"))
        monkeypatch.setattr(UniqueClaims, "end", raises(SoftTimeLimitExceeded))
        desk.deliver()

        state = runtime(desk.app).backend.peek("order:42")
        assert (state.holders, state.grants) == ((), ())


@pytest.mark.parametrize("way_out", [SystemExit, MemoryError, KeyboardInterrupt])
def test_a_task_that_is_ended_before_its_result_is_stored_is_not_done(
    monkeypatch: pytest.MonkeyPatch, way_out: type[BaseException]
) -> None:
    with open_desk() as desk:
        task = late(desk)
        outcomes = watch_outcomes(monkeypatch)
        monkeypatch.setattr(task.backend, "mark_as_done", raises(way_out))

        task.delay()
        with pytest.raises(BaseException):  # noqa: B017, PT011 - the solo pool has its own way with each
            desk.deliver()

        # The broker still has the message: its next delivery must not be dropped as done
        assert outcomes == [Outcome.ABANDONED]


def late(desk: Desk) -> LockedTask:
    @desk.locked("order:42", name="late", acks_late=True)
    def late() -> int:
        return 1

    return late


def raises(error: type[BaseException]) -> Callable[..., None]:
    def raising(*args: Any, **kwargs: Any) -> None:
        raise error

    return raising


def watch_outcomes(monkeypatch: pytest.MonkeyPatch) -> list[Outcome]:
    outcomes: list[Outcome] = []
    release = LockManager.release

    def watched(self: LockManager, lease: Any, outcome: Outcome, *message: Any) -> bool:
        outcomes.append(outcome)
        return release(self, lease, outcome, *message)

    monkeypatch.setattr(LockManager, "release", watched)
    return outcomes


# When a task is over: what is remembered, what is left over, what its lease still says.


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
