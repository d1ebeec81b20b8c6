"""A worker whose configuration cannot keep the promises does not start, and says why."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, _state
from celery._state import _set_current_app, get_current_app
from celery.app import trace
from celery.concurrency.gevent import TaskPool as GreenPool
from celery.concurrency.prefork import TaskPool
from celery.concurrency.thread import TaskPool as ThreadPool
from celery.contrib.testing.worker import start_worker
from celery.worker.strategy import proto1_to_proto2

from celery_dlock import BackendUnavailable, ConfigurationError, locked_task
from celery_dlock.runtime import forget, runtime
from celery_dlock.tasks.task import prepare_worker
from celery_dlock.testing import held_by_another
from celery_dlock.worker.request import LockedRequest
from celery_dlock.worker.startup import CheckAtStart
from tests.services.desk import open_desk
from tests.services.redis import RedisServer
from tests.services.until import until
from tests.services.worker import Worker
from tests.workers.conftest import MakeLab, charging

SECRET = "tiger-1234"

NOWHERE = "redis://127.0.0.1:1/0"

BUILD_TRACER = trace.build_tracer


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "no store": ({"dlock_url": None}, "dlock_url is not set"),
    "unknown setting": ({"dlock_tttl": 5}, "unknown setting dlock_tttl; did you mean 'dlock_ttl'"),
    "one process only": ({"dlock_url": "memory://"}, "lives in one process"),
    "a missing trait": ({"dlock_require": ["multi-host"]}, "multi-host, which SqliteBackend lacks"),
}


@pytest.mark.parametrize("what", CASES)
def test_it_does_not_start_with(tmp_path: Path, what: str) -> None:
    config, text = CASES[what]
    with open_desk(**{"dlock_url": f"sqlite:///{tmp_path / 'locks.db'}", **config}) as desk:
        desk.patch.setattr("celery_dlock.runtime.will_fork", forget)  # which this process will not
        with pytest.raises(ConfigurationError, match=re.escape(text)) as refused:
            CheckAtStart(SimpleNamespace(app=desk.app, pool_cls=TaskPool))
        assert str(refused.value).startswith(f"Celery app {desk.app.main!r}: ")
        forget(desk.app)


def test_nothing_is_kept_for_a_chain_with_the_old_protocol(caplog: Any) -> None:
    with open_desk(dlock_url="memory://", task_protocol=1) as desk:

        @desk.locked("k", name="fetch", reserve="chain")
        def fetch() -> None: ...

        with pytest.raises(ConfigurationError, match='fetch: reserve="chain" keeps nothing with'):
            CheckAtStart(SimpleNamespace(app=desk.app, pool_cls=ThreadPool))
        for _ in range(2):  # as other software may publish
            fetch.delay()
            message = desk.receive()
            body, headers, decoded, utc = proto1_to_proto2(message, message.payload)
            read = {"body": body, "headers": headers, "decoded": decoded, "utc": utc}
            LockedRequest(message, app=desk.app, task=fetch, on_ack=message.ack, **read)
        forget(desk.app)

    assert caplog.text.count("fetch has protocol 1, which does not name the next task") == 1


def test_a_store_of_one_process_is_good_enough_for_threads() -> None:
    with open_desk(dlock_url="memory://") as desk:
        CheckAtStart(SimpleNamespace(app=desk.app, pool_cls=ThreadPool))
        forget(desk.app)


def test_it_does_not_abort_bodies_where_greenlets_stand_in_for_threads() -> None:
    with open_desk() as desk:

        @desk.locked("k", name="charge", on_lost="abort")
        def charge() -> None: ...

        with pytest.raises(ConfigurationError, match=r'charge: on_lost="abort" is not possible'):
            CheckAtStart(SimpleNamespace(app=desk.app, pool_cls=GreenPool))
        forget(desk.app)


def replaced(name: str, task: Any, **_: Any) -> Callable[..., Any]:
    """As pools for coroutines do it: another tracer, with Celery's parts in its closure."""
    info = trace.TraceInfo

    def trace_task(*_: Any) -> Any:
        return info, trace_task

    return trace_task


def watched(name: str, task: Any, **options: Any) -> Callable[..., Any]:
    """As tools that watch errors do it."""
    celerys = BUILD_TRACER(name, task, **options)

    @wraps(celerys)
    def trace_task(*args: Any) -> Any:
        return celerys(*args)

    return trace_task


def watched_in_their_own_name(*args: Any, **options: Any) -> Callable[..., Any]:
    celerys: Any = watched(*args, **options)
    if celerys is None:
        before = celerys
    return lambda *args: celerys(*args) or before  # whose cell is empty


def test_it_does_not_start_with_another_tracer_than_celerys() -> None:
    with open_desk() as desk:
        worker = SimpleNamespace(app=desk.app, pool_cls=ThreadPool)
        check = CheckAtStart(worker)
        desk.patch.setattr(trace, "build_tracer", replaced)
        check.include(worker)  # no task has a lock

        charging(desk)
        with pytest.raises(ConfigurationError, match=rf"charge has a lock, and {__name__} has rep"):
            check.include(worker)
        forget(desk.app)


@pytest.mark.parametrize("build", [BUILD_TRACER, watched, watched_in_their_own_name])
def test_it_starts_with_a_tracer_around_celerys(build: Callable[..., Any]) -> None:
    with open_desk() as desk:
        charging(desk)
        desk.patch.setattr(trace, "build_tracer", build)
        worker = SimpleNamespace(app=desk.app, pool_cls=ThreadPool)
        CheckAtStart(worker).include(worker)
        forget(desk.app)


def test_it_does_not_start_with_a_backoff_beyond_the_brokers_patience(app: Celery) -> None:
    app.conf.update(broker_url=NOWHERE, broker_transport_options={"visibility_timeout": 60})

    @locked_task("k", name="late.later", app=app)
    def later() -> None: ...

    app.finalize()
    with pytest.raises(ConfigurationError, match=r"by 60 s.*visibility_timeout=60 s"):
        CheckAtStart(SimpleNamespace(app=app, pool_cls=ThreadPool))


@pytest.mark.parametrize(
    "url",
    [
        f"redis://user:{SECRET}@localhost:6379/not-a-number",
        f"redis://user:{SECRET}@localhost:port/0",
        f"reddis://user:{SECRET}@localhost/0",
        f"sqlite://user:{SECRET}@localhost/x.db",
        f"memory://user:{SECRET}@localhost",
        f"redis://user:{SECRET}@localhost:6379/0?no_such_option=1",
    ],
)
def test_a_password_is_never_printed(url: str) -> None:
    with open_desk(dlock_url=url) as desk, pytest.raises(ConfigurationError) as caught:
        runtime(desk.app)

    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_nor_in_the_log_of_a_worker_that_does_not_start(make_lab: MakeLab) -> None:
    lab = make_lab(celery={"dlock_url": f"redis://user:{SECRET}@localhost:port/0"})
    worker = Worker(lab.folder, lab.config, "refused", "prefork", 1)
    worker.start(ready=False)
    try:
        assert worker.ended() != 0, worker.log
    finally:
        worker.kill()

    assert " ready." not in worker.log
    assert "\nError: Celery app 'lab': redis-py cannot use the URL of the lock store" in worker.log
    assert "Traceback" not in worker.log
    assert SECRET not in worker.log


@pytest.mark.server("redis")
@pytest.mark.parametrize("away", [True, False])
def test_nor_by_a_store_that_is_away_or_refuses_it(
    own_redis_server: RedisServer, caplog: pytest.LogCaptureFixture, away: bool
) -> None:
    url = f"redis://user:{SECRET}@127.0.0.1:{own_redis_server.port}/0"
    if away:
        own_redis_server.kill()

    with open_desk(dlock_url=url) as desk:
        charge = charging(desk, "k")
        result = charge.delay()
        desk.deliver()
        said = f"{result.traceback} {result.result!r} {caplog.text}"

        assert result.state == "RETRY"
        assert isinstance(result.result, BackendUnavailable)
        assert SECRET not in said


# A worker may have started before the first task of its application gets a lock.


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
    current, default = get_current_app(), _state.default_app
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    with closing(app):
        yield app
        forget(app)
    root.setLevel(level)  # which the worker has set
    root.handlers[:] = handlers
    _set_current_app(current)
    _state.default_app = default


def test_a_task_defined_after_the_worker_started_is_woken(app: Celery) -> None:
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30) as worker:

        @locked_task("order:{order}", name="late.waits", app=app, on_contention="queue")
        def charge(order: str) -> str:
            return order

        worker.reload()
        with held_by_another(KEY, app=app):
            result = charge.delay("42")
            until("it waits", lambda: runtime(app).backend.peek(KEY).waiting)
        assert result.get(timeout=60) == "42"


def test_a_worker_without_a_store_is_told(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    app.conf.dlock_url = None
    prepare_worker(SimpleNamespace(app=app))

    @locked_task("order:{order}", name="late.charge", app=app)
    def charge(order: str) -> None: ...

    with caplog.at_level(logging.WARNING, logger="celery_dlock"):
        app.finalize()
    assert "late.charge has a lock" in caplog.text
