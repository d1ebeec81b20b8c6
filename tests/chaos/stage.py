"""Servers and workers of one round, under the care of a supervisor as they would have.

A worker that died, or has shut down, is started again.
"""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from celery import Celery

from celery_dlock.runtime import runtime
from celery_dlock.stores.base import LockBackend
from tests.chaos.app import make_app
from tests.chaos.brokers import BROKERS, Broker
from tests.chaos.members import MEMBERS
from tests.chaos.plan import Kind
from tests.chaos.resource import Resource
from tests.chaos.stores import RedisStore, SqliteStore, Store
from tests.services.brokers import close, left
from tests.services.until import until
from tests.services.worker import Worker

TTL = 1.5
#: Seconds that a worker with nothing to do may take to shut down.
PATIENCE = 20.0

STORES: Mapping[str, Any] = {"redis": RedisStore, "sqlite": SqliteStore, **MEMBERS}

WORKERS = 3
PROCESSES = 2


@dataclass(frozen=True, slots=True)
class Setting:
    """What a round runs on. *scheme* is that of a store of SQLite's kind.

    A broker that has a name is one of the round's own.
    """

    broker: str | Broker = "redis"
    store: str = "redis"
    ack: str = "late"
    scheme: str = "sqlite"


def kinds_of(setting: Setting) -> tuple[Kind, ...]:
    """What may go wrong.

    With early acknowledgement a kill loses the task, as in Celery; and when the broker is away, a
    task whose store is away too has nowhere to go and fails, visibly.
    """
    store = STORES[setting.store].kinds
    kinds = (Kind.STOP_WORKER, Kind.PAUSE_WORKER, *store, Kind.COPY)
    if setting.ack == "early":
        return kinds
    kills = (Kind.KILL_CHILD, Kind.KILL_MAIN, Kind.KILL_WORKER, Kind.STOP_COLD)
    return (*kills, Kind.RESTART_BROKER, *kinds)


@dataclass
class Stage:
    """What the faults strike, and what the campaign looks at."""

    folder: Path
    app: Celery
    resource: Resource
    store: Store
    broker: Broker
    workers: list[Worker] = field(default_factory=list)

    @property
    def backend(self) -> LockBackend:
        return runtime(self.app).backend

    def supervise(self) -> None:
        """Start again who has died.

        What is left of it is killed, as systemd does: a child that was forked as its main process
        died has not asked the kernel yet to die with it, and Celery's pool never looks again.
        """
        for worker in self.workers:
            if worker.process is None or worker.process.poll() is not None:
                worker.kill()
                worker.start(ready=False)

    def shut_down(self) -> list[str]:
        """All workers shut down, warmly; those that did not are killed and named."""
        for worker in self.workers:
            worker.send(signal.SIGTERM)
        return [worker.log_path.stem for worker in self.workers if not _ends(worker)]

    def messages(self) -> int:
        """How many messages lie in the broker, as far as it can be seen while workers run."""
        return left(self.app)

    def logged(self, what: str) -> Counter[str]:
        """How often the workers said of each task that it was *what*."""
        line = re.compile(rf"Task \w+\[([0-9a-f-]{{36}})\] {what}", re.MULTILINE)
        return Counter(found for worker in self.workers for found in line.findall(worker.log))


@contextmanager
def open_stage(folder: Path, setting: Setting) -> Iterator[Stage]:
    """Everything is up in the block, and gone after it."""
    with ExitStack() as stack:
        broker = stack.enter_context(_broker(setting))
        store = _store(setting, folder, stack)
        settings = {**CELERY, **broker.settings, **store.settings}
        config = {"folder": str(folder), "celery": settings, "task": _task(setting)}
        app = make_app(config)
        stack.callback(close, app)
        stage = Stage(folder, app, Resource(folder), store, broker)
        stage.resource.create()
        # Whoever closes the last connection shuts all others out, for as long as it is paused.
        stack.enter_context(stage.resource.open())
        for number in range(WORKERS):
            # Every other one lets its bodies have a moment before it stops them
            patience = SOFT if number % 2 else 0.0
            own = {**config, "celery": {**settings, "worker_soft_shutdown_timeout": patience}}
            worker = Worker(folder, own, f"worker{number}", "prefork", PROCESSES, APP)
            worker.start(ready=False)
            stage.workers.append(worker)
            stack.callback(worker.kill)
        until("all are ready", lambda: all(" ready." in each.log for each in stage.workers), 60)
        yield stage


APP = "tests.chaos.app:app"
#: Seconds of a soft shutdown.
SOFT = 0.2
CELERY = {
    "task_ignore_result": True,
    "worker_prefetch_multiplier": 1,
    "broker_connection_retry_on_startup": True,
    "dlock_ttl": TTL,
    "dlock_sinks": ["tests.chaos.app.note"],
}


def _ends(worker: Worker) -> bool:
    assert worker.process is not None
    try:
        worker.process.wait(PATIENCE)
    except TimeoutExpired:
        return False
    finally:
        worker.kill()
    return True


def _broker(setting: Setting) -> Broker:
    return BROKERS[setting.broker]() if isinstance(setting.broker, str) else setting.broker


def _store(setting: Setting, folder: Path, stack: ExitStack) -> Store:
    if setting.store == "sqlite":
        return SqliteStore(folder, setting.scheme)
    found: Store = STORES[setting.store](stack)
    return found


def _task(setting: Setting) -> dict[str, Any]:
    late = setting.ack == "late"
    return {"acks_late": late, "reject_on_worker_lost": late}
