"""A task that waits in the store says so, where tasks report their state on the way."""

from __future__ import annotations

from typing import Any

import pytest
from celery import states

from celery_dlock import LockedTask, Queue, lock
from celery_dlock.core.state import Claim
from celery_dlock.runtime import runtime
from tests.services.desk import Desk

pytestmark = pytest.mark.stores

KEY = "order:42"


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


def test_it_is_said_before_the_message_is_in_the_store(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given somebody who runs the task as soon as its message is in the store
    result = make(desk, track_started=True).delay("42")
    store = runtime(desk.app).backend
    enter, seen = store.enter, list[str]()

    def parks(claim: Claim, message: bytes | None = None) -> Any:
        reply = enter(claim, message)
        seen.append(f"{claim.wait}: {result.state}")
        return reply

    with lock(KEY, app=desk.app, timeout=0):
        monkeypatch.setattr(store, "enter", parks)
        desk.deliver()

    # Then a state written now could no longer be written over a result
    assert seen == ["look: STARTED", "queue: PARKED"]


def test_a_copy_of_a_running_task_says_nothing_about_it(desk: Desk) -> None:
    # Given a task that runs, And its message is redelivered
    charge = make(desk, track_started=True)
    result = charge.delay("42")
    message = desk.take()
    assert message is not None
    running = Claim(KEY, f"{result.id}:0:0", "another", ttl=10**9)
    runtime(desk.app).backend.enter(running)
    desk.app.backend.store_result(result.id, {}, states.STARTED)

    desk.run(message)

    assert result.state == states.STARTED
    assert runtime(desk.app).backend.peek(KEY).parked == 1


@pytest.mark.parametrize(
    ("options", "state"),
    [({}, states.PENDING), ({"track_started": True, "ignore_result": True}, states.PENDING)],
    ids=["by default", "without a result"],
)
def test_nothing_is_said_and_nothing_asked_twice(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], state: str
) -> None:
    result = make(desk, **options).delay("42")
    store = runtime(desk.app).backend
    enter, asked = store.enter, list[Claim]()

    def counted(claim: Claim, message: bytes | None = None) -> Any:
        asked.append(claim)
        return enter(claim, message)

    with lock(KEY, app=desk.app, timeout=0):
        monkeypatch.setattr(store, "enter", counted)
        desk.deliver()

    assert result.state == state
    assert len(asked) == 1


def test_a_result_backend_that_is_away_does_not_keep_a_task_from_waiting(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(desk, track_started=True).delay("42")
    store_result = desk.app.backend.store_result

    def away(task_id: str, result: Any, state: str, *more: Any, **others: Any) -> Any:
        if state == "PARKED":
            raise ConnectionError("no result backend")
        return store_result(task_id, result, state, *more, **others)

    monkeypatch.setattr(desk.app.backend, "store_result", away)
    with lock(KEY, app=desk.app, timeout=0):
        message = desk.deliver()
        assert runtime(desk.app).backend.peek(KEY).parked == 1
    assert message.acknowledged


def test_a_full_queue_is_still_a_failure(desk: Desk) -> None:
    @desk.locked(
        "order:{order}", name="charge", on_contention=Queue(max_waiting=1), track_started=True
    )
    def charge(order: str) -> str:
        return order

    first, second = charge.delay("42"), charge.delay("42")
    with lock(KEY, app=desk.app, timeout=0):
        desk.deliver()
        desk.deliver()

    assert first.state == "PARKED"
    assert second.state == states.FAILURE
