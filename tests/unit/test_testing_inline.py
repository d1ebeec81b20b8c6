"""What tests of other projects are given: a key that is taken, a worker in the process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.backends.cache import CacheBackend

from celery_dlock import ConfigurationError, LockContended, current_lease, lock, locked_task
from celery_dlock.core.events import Event
from celery_dlock.monitoring.history_reader import HistoryReader
from celery_dlock.runtime import forget, runtime, settings_of
from celery_dlock.testing import (
    InlineWorker,
    ManualClock,
    held_by_another,
    in_memory,
    inline_worker,
)
from celery_dlock.testing.isolation import every_app_isolated
from tests.services.forked import in_a_forked_child


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


def test_a_reschedule_comes_again_at_once(app: Celery, worker: InlineWorker) -> None:
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
    with pytest.raises(AssertionError, match=r"no message waits in any of .*'celery'"):
        worker.deliver()


def nothing() -> None:
    pass


def test_a_worker_without_the_name_of_a_queue_handles_all(app: Celery, clock: ManualClock) -> None:
    app.conf.update(task_default_queue="orders.fifo", task_routes={"plain": {"queue": "mail"}})
    charge = made(app, "queue")
    app.task(name="plain")(nothing)
    with inline_worker(app) as worker:
        with held_by_another("order:2", app=app):
            charge.delay(2)
            app.send_task("plain")
            assert (worker.queued(), worker.queued("mail"), worker.queued("orders.fifo")) == (
                2,
                1,
                1,
            )
            assert worker.deliver("mail") == "succeeded"
            assert worker.deliver() == "parked"
        charge.delay(3)
        assert (worker.queued(), worker.queued("orders.fifo")) == (2, 2)  # one of them was woken
        result = charge.apply_async((4,), queue="night")
        assert [worker.deliver("night"), result.get()] == ["succeeded", "ran"]
        woken = worker.take()
        assert woken is not None
        assert (woken.headers["argsrepr"], worker.queued()) == ("(2,)", 1)


def test_messages_of_one_application_reach_another(app: Celery, clock: ManualClock) -> None:
    shop = Celery("shop", set_as_current=False)
    app.send_task("shop.ship")
    with in_memory(shop):
        assert InlineWorker(shop).queued() == 1


def test_messages_of_one_test_do_not_reach_the_next(app: Celery, clock: ManualClock) -> None:
    with inline_worker(app):
        made(app, "queue").delay(2)
    with inline_worker(app) as worker:
        assert worker.queued() == 0


NOWHERE = "redis://127.0.0.1:1/0"


@pytest.fixture
def configured(tmp_path: Path) -> Iterator[Celery]:
    """An application whose servers do not answer, and which has already used its connections."""
    with Celery("shop", broker=NOWHERE, backend=NOWHERE, set_as_current=False) as app:
        app.conf.update(
            dlock_url=NOWHERE,
            dlock_history=f"sqlite:///{tmp_path / 'history.db'}",
            dlock_sinks=[f"{__name__}.named_sink", noted.append],
        )
        assert [app.pool, app.amqp.producer_pool, app.backend]
        yield app


noted: list[Event] = []


def named_sink(event: Event) -> None:
    raise AssertionError("a test reached a sink that the settings name")


def objects_of(app: Celery, task: Any) -> list[Any]:
    broker = app.connection_for_write().as_uri()
    kept = [app.pool, app.amqp.producer_pool, app.backend, task._backend]
    return [*kept, broker, runtime(app).settings.url]


def test_a_test_reaches_nothing_that_is_configured(configured: Celery, tmp_path: Path) -> None:
    app, own = configured, CacheBackend(app=configured, url="memory://")

    @app.task(backend=own)
    def plain() -> str:
        return "ran"

    charge = made(app, "queue")
    before = objects_of(app, charge)

    with inline_worker(app) as worker:
        with held_by_another("order:2", app=app):
            locked, unlocked = charge.delay(2), plain.delay()
            assert [worker.deliver(), worker.deliver()] == ["parked", "succeeded"]
        assert worker.deliver() == "succeeded"
        assert [locked.get(), unlocked.get()] == ["ran", "ran"]
        with app.connection() as connection:
            assert connection.transport.driver_type == "memory"
        with pytest.raises(ConfigurationError, match="dlock_history is not set"):
            HistoryReader.from_app(app)
        app.control.broadcast("shutdown")
        forget(app)  # as a worker does that starts within the test
        assert runtime(app).settings.url == "memory://"

    assert own.get_state(unlocked.id) == "PENDING"
    assert not (tmp_path / "history.db").exists()
    assert [type(event).__name__ for event in noted if event.subject.task_id == locked.id]
    assert objects_of(app, charge) == before
    assert plain.backend is own


USES: dict[str, Callable[[Celery, Any], object]] = {
    "pool": lambda app, task: app.pool,
    "producers": lambda app, task: app.amqp.producer_pool,
    "to read": lambda app, task: app.connection_for_read().as_uri(),
    "to write": lambda app, task: app.connection_for_write().as_uri(),
    "results": lambda app, task: app.backend,
    "results of a task": lambda app, task: task.backend,
    "store": lambda app, task: runtime(app).settings.url,
    "settings": lambda app, task: settings_of(app).history,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_every_application_is_isolated_before_its_first_use(
    configured: Celery, use: Callable[[Celery, Any], object]
) -> None:
    charge = made(configured, "queue")
    before = use(configured, charge)

    with every_app_isolated(ManualClock()):
        assert use(configured, charge) != before

    assert use(configured, charge) == before


def test_an_application_of_the_block_is_isolated_and_one_that_is_not_used_may_be_wrong(
    configured: Celery,
) -> None:
    with every_app_isolated(ManualClock()):
        late = Celery("late", broker=NOWHERE, backend=NOWHERE, set_as_current=False)
        late.conf.update(dlock_url=NOWHERE, dlock_ttl=7, dlock_tll=7)
        charge = made(late, "queue")
        with pytest.raises(ConfigurationError, match="dlock_ttl"):
            charge(2)
        for settings in late.conf.maps:  # before 5.6 Celery keeps early ones apart
            settings.pop("dlock_tll", None)

        with in_memory(late) as clock, held_by_another("order:2", app=late):
            with pytest.raises(LockContended):
                charge(2)
            clock.advance(8)
        assert charge(2) == "ran"
        assert charge.delay(2).state == "PENDING"

        with in_memory(late) as same:
            assert same is clock
        in_a_forked_child(lambda: refused(configured))


def refused(app: Celery) -> None:
    with pytest.raises(ConfigurationError, match="this is another process"):
        runtime(app)


def test_a_block_within_the_block_shares_its_locks_and_may_end_later(configured: Celery) -> None:
    first, second = inline_worker(configured), in_memory(configured)
    with ExitStack() as ends_first, ExitStack() as ends_later:
        ends_first.enter_context(first)
        clock = ends_later.enter_context(second)
        with held_by_another("order:2", app=configured):
            ends_first.close()
            with pytest.raises(LockContended):
                lock("order:2", app=configured, timeout=0).acquire()
            clock.advance(31)
            lock("order:2", app=configured, timeout=0).acquire()
        assert runtime(configured).settings.url == "memory://"
    assert runtime(configured).settings.url == NOWHERE


def test_a_forked_process_does_not_reach_the_real_store_either(configured: Celery) -> None:
    with in_memory(configured):
        in_a_forked_child(lambda: refused(configured))
