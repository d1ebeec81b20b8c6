"""A worker may have started before the first task of its application gets a lock."""

# mypy: allow-untyped-calls

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace

import pytest
from celery import Celery, _state
from celery._state import _on_app_finalizers, _set_current_app, get_current_app
from celery.contrib.testing.worker import start_worker

from celery_dlock import locked_task
from celery_dlock.runtime import forget, runtime
from celery_dlock.tasks.task import prepare_worker
from celery_dlock.testing import held_by_another
from tests.services.until import until

KEY = "order:42"


@pytest.fixture
def app() -> Iterator[Celery]:
    """One for Celery's own test worker, which runs in a thread of this process."""
    app = Celery("late", set_as_current=False)
    app.conf.update(
        broker_url="memory://late",
        result_backend="cache+memory://",
        task_default_queue="late",
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        dlock_url="memory://",
    )
    shared, current, default = set(_on_app_finalizers), get_current_app(), _state.default_app
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    with closing(app):
        yield app
        forget(app)
    root.setLevel(level)  # which the worker has set
    root.handlers[:] = handlers
    _on_app_finalizers.intersection_update(shared)
    _set_current_app(current)
    _state.default_app = default


def test_a_task_that_is_defined_after_the_worker_has_started_waits_and_is_woken(
    app: Celery,
) -> None:
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30) as worker:

        @locked_task(
            "order:{order}", name="late.waits", app=app, on_contention="queue", shared=False
        )
        def charge(order: str) -> str:
            return order

        worker.reload()
        with held_by_another(KEY, app=app):
            result = charge.delay("42")
            until("it waits", lambda: runtime(app).backend.peek(KEY).waiting)
        assert result.get(timeout=60) == "42"


def test_a_worker_without_a_lock_store_is_told_of_its_first_lock(
    app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    app.conf.dlock_url = None
    prepare_worker(SimpleNamespace(app=app))

    @locked_task("order:{order}", name="late.charge", app=app, shared=False)
    def charge(order: str) -> None: ...

    with caplog.at_level(logging.WARNING, logger="celery_dlock"):
        app.finalize()
    assert "late.charge has a lock" in caplog.text
