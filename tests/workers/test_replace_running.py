"""``Replace(running=True)``: the newest of a task wins over the one that runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery.exceptions import Reject

from celery_dlock import Lease, LockedTask, Replace, StaleFencingToken, current_lease, lock
from celery_dlock.core.events import Lost, Skipped, StaleRejected
from celery_dlock.ops.explain import explain
from celery_dlock.runtime import runtime
from celery_dlock.testing import ManualClock
from tests.services.desk import Desk
from tests.workers.conftest import nothing_is_left

#: A Redlock asks the node with the queue who has to give way, and the others who holds the key.
pytestmark = pytest.mark.stores("redlock")

KEY = "site:7"
Does = Callable[[Any], Any]
Make = Callable[..., LockedTask]


@pytest.fixture
def told() -> list[str | None]:
    """By whom the hook was told that each was replaced."""
    return []


@pytest.fixture
def make(desk: Desk, told: list[str | None]) -> Make:
    """``make(does)``: a task whose newest wins; the first body calls *does*."""

    class Told(LockedTask):
        abstract = True

        def on_lock_lost(self, lease: Lease, *_: Any) -> None:
            told.append(lease.replaced)

    def make(does: Does, **options: Any) -> LockedTask:
        given = {"name": "sync", "on_contention": Replace(running=True), "base": Told, **options}

        @desk.locked("site:{site}", bind=True, **given)
        def sync(self: Any, number: int, site: int = 7) -> int:
            desk.ran.append(number)
            if len(desk.ran) == 1:
                does(self)
            return number

        return sync

    return make


def hears(desk: Desk) -> None:
    """The keeper renews what is held, as it does every third of its lease."""
    keeper = runtime(desk.app).manager._keeper
    for watch in list(keeper._watches.values()):
        watch.due = 0.0
    keeper.tend()


def asked(desk: Desk, sync: LockedTask, number: int = 2) -> str:
    """Another one comes and waits, and the one that runs hears of it; the id of the other."""
    newer = sync.delay(number)
    desk.deliver_all()
    hears(desk)
    return str(newer.id)


def replaced(newer: str) -> dict[str, Any]:
    """The result of a task that was replaced by *newer*."""
    reason = f"replaced by {newer}"
    return {"skipped": True, "key": KEY, "holder": newer, "since": None, "reason": reason}


def raises(desk: Desk, error: Exception | None = None, heard: list[str] | None = None) -> Does:
    """A body that is asked to stop and raises *error*, or what its lease says."""
    found = [] if heard is None else heard

    def does(task: Any) -> None:
        found.append(asked(desk, desk.app.tasks["sync"]))
        assert task.lease.replaced == found[0]
        if error is not None:
            raise error
        task.lease.check()

    return does


@pytest.mark.parametrize("error", [None, StaleFencingToken(KEY, 1, 2)], ids=["checks", "is fenced"])
def test_who_stops_ends_as_skipped_and_the_newest_runs(
    desk: Desk, make: Make, told: list[str | None], error: Exception | None
) -> None:
    newer: list[str] = []
    sync = make(raises(desk, error, newer))
    first = sync.delay(1)

    desk.deliver_all()

    assert desk.ran == [1, 2]
    assert first.get() == replaced(newer[0])
    assert desk.result(newer[0]).get() == 2
    assert told == newer
    (lost,) = desk.happened(Lost)
    assert (lost.reason, lost.newer) == (f"replaced by {newer[0]}", newer[0])
    assert len(desk.happened(Skipped if error is None else StaleRejected)) == 1


def test_who_ends_by_itself_has_its_result(desk: Desk, make: Make) -> None:
    sync = make(lambda _: asked(desk, desk.app.tasks["sync"]))
    first = sync.delay(1)

    desk.deliver_all()

    assert (first.get(), desk.ran) == (1, [1, 2])


def test_who_fails_has_failed(desk: Desk, make: Make) -> None:
    first = make(raises(desk, KeyError("the cleanup failed"))).delay(1)

    desk.deliver_all()

    assert first.state == "FAILURE"
    assert desk.ran == [1, 2]


@pytest.mark.parametrize("options", [{}, {"autoretry_for": (Exception,), "retry_backoff": 5}])
def test_one_that_would_retry_ends(desk: Desk, make: Make, options: dict[str, Any]) -> None:
    newer: list[str] = []

    def does(task: Any) -> None:
        newer.append(asked(desk, desk.app.tasks["sync"]))
        if options:
            raise KeyError("the site is down")
        raise task.retry(countdown=5)

    first = make(does, **options).delay(1)
    desk.deliver_all()

    assert first.get() == replaced(newer[0])
    assert desk.ran == [1, 2]


def test_a_retry_makes_room_for_the_newest(desk: Desk, make: Make) -> None:
    def does(task: Any) -> None:
        task.app.tasks["sync"].delay(2)
        raise task.retry(countdown=0)  # it has not heard

    first = make(does).delay(1)
    desk.deliver_all()

    assert desk.ran == [1, 2]
    assert first.get()["skipped"]


def test_the_newest_waits_and_those_between_are_skipped(desk: Desk, make: Make) -> None:
    def does(task: Any) -> None:
        between.extend(asked(desk, desk.app.tasks["sync"], number) for number in (2, 3, 4))
        task.lease.check()

    between: list[str] = []
    first = make(does).delay(1)
    desk.deliver_all()

    assert desk.ran == [1, 4]
    assert first.get() == replaced(between[0])  # of whom it heard
    assert [desk.result(each).get()["skipped"] for each in between[:2]] == [True, True]
    assert desk.result(between[2]).get() == 4


def test_one_whose_turn_has_come_gives_way_to_the_newest(desk: Desk, make: Make) -> None:
    sync = make(raises(desk))
    sync.delay(1)
    desk.deliver()
    woken = desk.receive()

    newest = sync.delay(3)
    desk.run(woken)
    desk.deliver_all()

    assert desk.ran == [1, 3]
    assert desk.result(woken.headers["id"]).get() == replaced(newest.id)
    assert newest.get() == 3


def test_nor_is_a_block_or_a_plain_call(desk: Desk, make: Make) -> None:
    def does(_: Any) -> None:
        asked(desk, desk.app.tasks["sync"])
        current_lease().check()

    sync = make(does)
    with lock(KEY, app=desk.app, timeout=0) as lease:
        sync.delay(5)
        hears(desk)
        lease.check()
    desk.deliver_all()
    desk.ran.clear()

    assert sync(1) == 1
    desk.deliver_all()
    assert desk.ran == [1, 2]


def test_who_does_not_listen_loses_its_key(desk: Desk, clock: ManualClock, make: Make) -> None:
    def does(task: Any) -> None:
        newer.append(desk.app.tasks["sync"].delay(2).id)
        desk.passes(29)
        assert desk.ran == [1]
        desk.passes(1)
        desk.deliver_all()
        assert desk.ran == [1, 2]
        raise StaleFencingToken(KEY, task.lease.fencing_token, task.lease.fencing_token + 1)

    newer: list[str] = []
    sync = make(does)
    first = sync.delay(1)
    desk.deliver_all()

    assert first.get() == replaced(newer[0])
    assert desk.result(newer[0]).get() == 2
    sync.apply_async((1,), task_id=first.id)
    desk.deliver_all()
    assert desk.ran == [1, 2]


@pytest.mark.parametrize("late", [True, False], ids=["late", "early"])
def test_one_that_is_rejected_ends_when_it_comes_again(desk: Desk, make: Make, late: bool) -> None:
    newer: list[str] = []
    sync = make(raises(desk, Reject("not now", requeue=True), newer), acks_late=late)
    first = sync.delay(1)

    desk.deliver_all()

    assert desk.ran == [1, 2]
    assert first.get() == replaced(newer[0])
    assert nothing_is_left(desk, KEY)


def test_what_runs_says_that_it_is_asked_to_stop(desk: Desk, make: Make) -> None:
    said: list[str] = []

    def does(task: Any) -> None:
        newer.append(asked(desk, desk.app.tasks["sync"]))
        said.extend(explain(desk.app, task.request.id).sentences)

    newer: list[str] = []
    make(does).delay(1)
    desk.deliver_all()

    assert f"because {newer[0]} replaces it" in said[0]


def test_a_unique_one_may_be_called_again_once_it_is_replaced(desk: Desk, make: Make) -> None:
    sync = make(raises(desk), unique="done")
    first = sync.delay(1)
    assert sync.delay(1).id == first.id

    desk.deliver_all()
    again = sync.delay(1)
    desk.deliver_all()

    assert again.id != first.id
    assert desk.ran == [1, 2, 1]
