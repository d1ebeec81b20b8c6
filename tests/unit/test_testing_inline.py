"""What tests of other projects are given: a key that is taken, a worker in the process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from celery._state import _on_app_finalizers

from celery_dlock import ConfigurationError, LockContended, current_lease, lock, locked_task
from celery_dlock.testing import (
    InlineWorker,
    ManualClock,
    held_by_another,
    in_memory,
    inline_worker,
)


@pytest.fixture
def app() -> Iterator[Celery]:
    shared = set(_on_app_finalizers)  # tasks that the next app would be given too
    with Celery("shop", broker="memory://", set_as_current=False) as app:
        app.conf.result_backend = "cache+memory://"
        yield app
    _on_app_finalizers.intersection_update(shared)


@pytest.fixture
def clock(app: Celery) -> Iterator[ManualClock]:
    with in_memory(app) as clock:
        yield clock


@pytest.fixture
def worker(app: Celery, clock: ManualClock) -> Iterator[InlineWorker]:
    with inline_worker(app) as worker:
        yield worker


def made(app: Celery, policy: Any, **options: Any) -> Any:
    @locked_task("order:{order}", app=app, on_contention=policy, **options)
    def charge(order: int) -> str:
        return "ran"

    return charge


def test_a_task_finds_a_key_taken_that_somebody_else_holds(app: Celery, clock: ManualClock) -> None:
    skips = made(app, "skip")
    with held_by_another("order:2", app=app):
        assert skips.apply((2,)).get()["skipped"]
        with pytest.raises(LockContended):
            skips(2)
        assert skips(3) == "ran"
    assert skips(2) == "ran"


def test_also_where_the_test_itself_holds_another_one(app: Celery, clock: ManualClock) -> None:
    with lock("order:1", app=app) as mine, held_by_another(["order:2", "order:3"], app=app) as held:
        assert held.keys == ("order:2", "order:3")
        assert current_lease() is mine
        with pytest.raises(LockContended), held_by_another("order:1", app=app):
            pass


def test_a_queue_is_seen_to_wait_and_to_go_on(app: Celery, worker: InlineWorker) -> None:
    charge = made(app, "queue")
    with held_by_another("order:2", app=app):
        first, second = charge.delay(2), charge.delay(2)
        assert [worker.deliver(), worker.deliver()] == ["parked", "parked"]
        assert (worker.queued(), first.state) == (0, "PENDING")
    assert worker.queued() == 1  # it was woken
    assert worker.deliver() == "succeeded"
    assert (first.get(), second.state) == ("ran", "PENDING")
    assert [worker.deliver(), second.get()] == ["succeeded", "ran"]


def test_a_reschedule_comes_again_and_no_countdown_is_waited_for(
    app: Celery, worker: InlineWorker
) -> None:
    charge = made(app, "reschedule")
    result = charge.delay(2)
    with held_by_another("order:2", app=app):
        assert [worker.deliver(), worker.deliver()] == ["rescheduled", "rescheduled"]
        assert result.state == "RETRY"
    assert worker.deliver() == "succeeded"
    assert result.get() == "ran"


@pytest.mark.parametrize(("policy", "said"), [("skip", "skipped"), ("fail", "failed")])
def test_what_does_not_wait_says_so(
    app: Celery, worker: InlineWorker, policy: str, said: str
) -> None:
    made(app, policy).delay(2)
    with held_by_another("order:2", app=app):
        assert worker.deliver() == said


def test_a_message_that_came_twice_is_dropped(app: Celery, worker: InlineWorker) -> None:
    charge = made(app, "queue")
    for _ in range(2):
        charge.apply_async((2,), task_id="once")
    assert [worker.deliver(), worker.deliver()] == ["succeeded", "dropped"]


def test_whose_worker_died_is_not_waited_for_longer_than_its_lease(
    app: Celery, worker: InlineWorker, clock: ManualClock
) -> None:
    charge = made(app, "queue")
    with held_by_another("order:2", app=app):
        charge.delay(2)
        assert worker.deliver() == "parked"
        clock.advance(31)
        worker.sweep()
        assert worker.deliver() == "succeeded"


def test_a_retry_and_a_task_without_a_lock(app: Celery, worker: InlineWorker) -> None:
    @app.task(bind=True, max_retries=1)
    def again(self: Any) -> str:
        if not self.request.retries:
            raise self.retry(countdown=60)
        return "ran"

    result = again.delay()
    assert [worker.deliver(), worker.deliver(), result.get()] == ["retried", "succeeded", "ran"]
    with pytest.raises(AssertionError, match="no message waits in the queue 'celery'"):
        worker.deliver()


def test_messages_of_one_test_do_not_reach_the_next(app: Celery, clock: ManualClock) -> None:
    with inline_worker(app):
        made(app, "queue").delay(2)
    with inline_worker(app) as worker:
        assert worker.queued() == 0


def test_a_broker_of_others_is_left_alone() -> None:
    app = Celery("shop", broker="redis://localhost:1/0", set_as_current=False)
    with pytest.raises(ConfigurationError, match="and here it is redis"):
        inline_worker(app).__enter__()
