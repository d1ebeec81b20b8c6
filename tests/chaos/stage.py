"""Servers and workers of one round, under the care of a supervisor as they would have.

A worker that died, or has shut down, is started again.
"""

from __future__ import annotations

import logging
import re
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from celery import Celery
from celery.states import READY_STATES
from kombu.exceptions import DecodeError

from celery_dlock.runtime import runtime
from celery_dlock.stores.base import LockBackend
from tests.chaos.app import logger, make_app
from tests.chaos.brokers import BROKERS, Broker
from tests.chaos.members import MEMBERS
from tests.chaos.plan import Kind
from tests.chaos.resource import Resource
from tests.chaos.stores import PostgresqlStore, RedisStore, SqliteStore, Store
from tests.services.brokers import close, left
from tests.services.until import until
from tests.services.worker import Worker

TTL = 1.5
#: Seconds that a worker with nothing to do may take to shut down.
PATIENCE = 20.0
#: And so long for the log of one that did not.
LAST_WORDS = 2.0

STORES: Mapping[str, Any] = {
    "redis": RedisStore,
    "sqlite": SqliteStore,
    "postgresql": PostgresqlStore,
    **MEMBERS,
}

WORKERS = 3
PROCESSES = 2


@dataclass(frozen=True, slots=True)
class Setting:
    """What a round runs on. *scheme* is that of another's store of that kind; *ttl* is in seconds.

    A broker that has a name is one of the round's own.
    """

    broker: str | Broker = "redis"
    store: str = "redis"
    ack: str = "late"
    pool: str = "prefork"
    scheme: str = ""
    ttl: float = TTL


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


@dataclass(frozen=True, slots=True)
class End:
    """How a task has ended, as its caller is told."""

    state: str
    skipped: bool
    result: str


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

    def end(self, task: str) -> End | None:
        """What its caller sees of a task that has ended."""
        try:
            told = self.app.AsyncResult(task)._get_task_meta()
        except DecodeError:  # whoever wrote it was killed at it
            return None
        result = told["result"]
        skipped = isinstance(result, dict) and "skipped" in result
        return End(told["status"], skipped, str(result)) if told["status"] in READY_STATES else None

    def last_word(self, task: str) -> str:
        """The newest line of a worker about that task; each begins with its time."""
        lines = (line for worker in self.workers for line in worker.log.splitlines())
        return max((line for line in lines if f"[{task}]" in line), default="")

    def logged(self, what: str) -> Counter[str]:
        """How often it was said of each task, here or in a worker, that it was *what*."""
        line = re.compile(rf"Task [\w ]+\[([0-9a-f-]{{36}})\] {what}", re.MULTILINE)
        logs = [(self.folder / OWN_LOG).read_text(), *(worker.log for worker in self.workers)]
        return Counter(found for log in logs for found in line.findall(log))


@contextmanager
def open_stage(folder: Path, setting: Setting) -> Iterator[Stage]:
    """Everything is up in the block, and gone after it."""
    with ExitStack() as stack:
        broker = stack.enter_context(_broker(setting))
        store = _store(setting, folder, stack)
        stack.enter_context(_logging_to(folder / OWN_LOG))
        results = folder / "results"
        results.mkdir()
        settings = {
            **CELERY,
            **broker.settings,
            **store.settings,
            "result_backend": f"file://{results}",
            "dlock_ttl": setting.ttl,
            # See docs/how-to/over-rabbitmq.rst: with it a worker may wait for ever (seed 71006).
            "worker_enable_prefetch_count_reduction": setting.pool != "threads",
        }
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
            worker = Worker(folder, own, f"worker{number}", setting.pool, PROCESSES, APP)
            worker.start(ready=False)
            stage.workers.append(worker)
            stack.callback(worker.kill)
        until("all are ready", lambda: all(" ready." in each.log for each in stage.workers), 60)
        yield stage


OWN_LOG = "sender.log"
APP = "tests.chaos.app:app"
#: Seconds of a soft shutdown.
SOFT = 0.2
CELERY = {
    "worker_prefetch_multiplier": 1,
    "broker_connection_retry_on_startup": True,
    "dlock_sinks": ["tests.chaos.app.note"],
}


@contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """Who publishes wakes others, too, and says so."""
    handler = logging.FileHandler(path)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


def _ends(worker: Worker) -> bool:
    assert worker.process is not None
    try:
        worker.process.wait(PATIENCE)
    except TimeoutExpired:
        worker.send(signal.SIGUSR1)  # Celery logs what each of its threads does
        with suppress(TimeoutExpired):
            worker.process.wait(LAST_WORDS)
        return False
    finally:
        worker.kill()
    return True


def _broker(setting: Setting) -> Broker:
    return BROKERS[setting.broker]() if isinstance(setting.broker, str) else setting.broker


def _store(setting: Setting, folder: Path, stack: ExitStack) -> Store:
    if setting.store == "sqlite":
        return SqliteStore(folder, setting.scheme or "sqlite")
    if setting.store == "redis":
        return RedisStore(stack, setting.scheme or "redis")
    found: Store = STORES[setting.store](stack)
    return found


def _task(setting: Setting) -> dict[str, Any]:
    late = setting.ack == "late"
    return {"acks_late": late, "reject_on_worker_lost": late}
