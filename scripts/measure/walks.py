"""Four walks through the package: locks on a real Redis, one worker in this process, no threads.

Each is made twice, and the second counts: by then connections are open and scripts are loaded.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from celery import Celery
from rich.table import Table

import celery_dlock
from celery_dlock import Queue, lock, locked_task
from celery_dlock.testing.inline import InlineWorker
from scripts.measure.recorder import Recorder, Walk
from tests.services.redis import RedisServer


def walk_all() -> list[Walk]:
    """The walks, over a Redis of their own."""
    with RedisServer() as server:
        app = Celery("measure")
        app.conf.update(
            broker_url="memory://", result_backend="cache+memory://", dlock_url=server.url
        )
        _define_tasks(app)
        worker = InlineWorker(app)
        package = Path(str(celery_dlock.__file__)).parent
        for recorder in (Recorder(package), Recorder(package)):
            _uncontended(app, worker, recorder)
            _parked(app, worker, recorder)
            _unique(app, worker, recorder)
            with recorder.walk("with lock()"), lock("order:1", app=app):
                pass
        worker.connection.close()
    return recorder.walks


def _define_tasks(app: Celery) -> None:
    def body(order: int, *, fencing_token: int) -> None:
        pass

    locked_task("order:{order}", app=app, name="pay")(body)
    locked_task("order:{order}", app=app, name="queued", on_contention=Queue())(body)
    locked_task("order:{order}", app=app, name="unique", unique="done")(body)


def _uncontended(app: Celery, worker: InlineWorker, recorder: Recorder) -> None:
    app.tasks["pay"].delay(1)
    with recorder.walk("uncontended task"):
        _deliver(worker, "succeeded")


def _parked(app: Celery, worker: InlineWorker, recorder: Recorder) -> None:
    holder = lock("order:1", app=app, timeout=0)
    holder.acquire()
    app.tasks["queued"].delay(1)
    with recorder.walk("parked"):
        _deliver(worker, "parked")
    with recorder.walk("the release that wakes it"):
        holder.release()
    with recorder.walk("woken and run"):
        _deliver(worker, "succeeded")
    calls = [call for walk in recorder.walks[-3:] for call in walk.calls]
    recorder.walks.append(Walk("these three together", tuple(calls)))


def _unique(app: Celery, worker: InlineWorker, recorder: Recorder) -> None:
    task = app.tasks["unique"]
    with recorder.walk("unique task: published"):
        task.delay(1)
    with recorder.walk("unique task: a duplicate call"):
        task.delay(1)
    with recorder.walk("unique task: in the worker"):
        _deliver(worker, "succeeded")


def _deliver(worker: InlineWorker, expected: str) -> None:
    outcome = worker.deliver()
    assert outcome == expected, f"the task is {outcome}; {expected} is to be measured"


def table_of(walks: Iterable[Walk]) -> Table:
    table = Table("walk", title="Calls inside celery_dlock over Redis", title_justify="left")
    for column in ("calls", "files", "changes of file"):
        table.add_column(column, justify="right")
    for walk in walks:
        table.add_row(walk.name, f"{len(walk.calls)}", f"{len(walk.files)}", f"{walk.changes}")
    return table
