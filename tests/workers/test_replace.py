"""``Replace()``: one runs, one waits, and that is the newest call, as the store counts them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_dlock import LockedTask, Replace, lock
from celery_dlock.testing import ManualClock
from tests.services.desk import Desk
from tests.services.unique import without_answer
from tests.workers.conftest import nothing_is_left

pytestmark = pytest.mark.stores

KEY = "index"


@pytest.fixture
def make(desk: Desk) -> Callable[..., LockedTask]:
    """``make(does)``: the first run of the number 1 calls *does*."""

    def make(
        does: Callable[[Any], object] = lambda _: None, key: Any = KEY, **options: Any
    ) -> LockedTask:
        given = {"name": "index", "on_contention": Replace(), "bind": True, **options}

        @desk.locked(key, **given)
        def index(self: Any, number: int) -> int:
            desk.ran.append((number, self.request.retries))
            if number == 1 and not self.request.retries:
                does(self)
            return number

        return index

    return make


def is_skipped(desk: Desk, task_id: str) -> bool:
    result: Any = desk.result(task_id).get()
    return bool(result["skipped"])


def retry_in(seconds: int) -> Callable[[Any], object]:
    def does(task: Any) -> None:
        raise task.retry(countdown=seconds)

    return does


@pytest.mark.every_store
def test_of_a_burst_the_newest_waits_in_whatever_order_workers_see_them(
    desk: Desk, make: Callable[..., LockedTask]
) -> None:
    index = make()
    with lock(KEY, app=desk.app, timeout=0):
        results = [
            index.apply_async((number,), queue="slow" if number % 2 else "fast")
            for number in range(2, 8)
        ]
        for queue in ("slow", "fast"):
            while desk.size(queue):
                desk.deliver(queue)
    for queue in ("slow", "fast"):
        while desk.size(queue):
            desk.deliver(queue)

    assert desk.ran == [(7, 0)]
    assert [is_skipped(desk, result.id) for result in results[:-1]] == [True] * 5
    assert nothing_is_left(desk, KEY)


def test_one_whose_turn_has_come_runs_although_a_newer_one_waits(
    desk: Desk, make: Callable[..., LockedTask]
) -> None:
    index = make()
    for number in (2, 3, 4):
        index.delay(number)

    desk.deliver_all()

    assert desk.ran == [(2, 0), (4, 0)]


def test_the_retry_of_an_older_call_makes_room_for_a_newer_one(
    desk: Desk, clock: ManualClock, make: Callable[..., LockedTask]
) -> None:
    index = make(retry_in(60))
    first = index.delay(1)
    desk.deliver_all()
    assert first.state == "RETRY"

    index.delay(2)
    desk.deliver_all()
    desk.passes(60)
    desk.deliver_all()

    assert desk.ran == [(1, 0), (2, 0)]
    assert is_skipped(desk, first.id)
    assert nothing_is_left(desk, KEY)


def test_a_retry_ends_at_once_if_a_newer_call_waits(
    desk: Desk, make: Callable[..., LockedTask]
) -> None:
    def does(task: Any) -> None:
        index.delay(2)
        raise task.retry(countdown=0)

    index = make(does)
    first = index.delay(1)

    desk.deliver_all()

    assert desk.ran == [(1, 0), (2, 0)]
    assert is_skipped(desk, first.id)


def test_a_retry_without_a_newer_call_runs_when_it_is_due_and_holds_up_nobody(
    desk: Desk, clock: ManualClock, make: Callable[..., LockedTask]
) -> None:
    make(retry_in(60)).delay(1)
    desk.deliver_all()
    with lock(KEY, app=desk.app, timeout=0):
        pass

    desk.passes(60)
    desk.deliver_all()

    assert desk.ran == [(1, 0), (1, 1)]


def test_a_retry_for_which_the_key_is_reserved_makes_room_too(
    desk: Desk, make: Callable[..., LockedTask]
) -> None:
    index = make(retry_in(60), reserve="retry")
    index.delay(1)
    desk.deliver_all()
    assert not lock_is_free(desk)

    index.delay(2)
    desk.deliver_all()

    assert desk.ran == [(1, 0), (2, 0)]
    assert lock_is_free(desk)


def lock_is_free(desk: Desk) -> bool:
    state = desk.store.peek(KEY)
    return not (state.holders or any(turn.reserves for turn in state.grants))


def test_a_killed_run_comes_before_the_newer_call(
    desk: Desk, clock: ManualClock, make: Callable[..., LockedTask]
) -> None:
    index = make()
    index.delay(2)
    with desk.patch.context() as patch:
        patch.setattr(desk.store, "leave", without_answer())
        desk.deliver()
    index.delay(3)
    desk.passes(3600)
    desk.deliver_all()

    assert [number for number, _ in desk.ran][-1] == 3


def test_with_several_keys_the_newest_call_of_them_waits(
    desk: Desk, make: Callable[..., LockedTask]
) -> None:
    index = make(key=[KEY, "disk"])
    with lock("disk", app=desk.app, timeout=0):
        for number in (2, 3, 4):
            index.delay(number)
            desk.deliver_all()
    desk.deliver_all()

    assert desk.ran == [(4, 0)]
