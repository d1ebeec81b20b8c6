"""What one process keeps for one app: its settings, its store, its manager.

Built at first use, under a mutex, and anew in a process that was forked: what the parent holds and
renews is the parent's.
"""

# pyright: reportUnknownMemberType=false, reportUnknownParameterType=false

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded
from celery.local import Proxy

from celery_dlock import forking
from celery_dlock.core.events import Sink
from celery_dlock.core.lease import SECOND
from celery_dlock.core.sinks import Sinks
from celery_dlock.core.turns import WAKE_AGAIN_LAST
from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.forking import PerProcess
from celery_dlock.locks.manager import LockManager
from celery_dlock.locks.unique import UniqueClaims
from celery_dlock.messages.countdown import remembered
from celery_dlock.messages.waking import Waker
from celery_dlock.registry import HISTORY, backend_class, load, open_backend, sink_named
from celery_dlock.settings import Settings
from celery_dlock.stores.base import BackendOptions, Clock, LockBackend, Trait


@dataclass(frozen=True, slots=True)
class Runtime:
    """The objects of one process and one app."""

    settings: Settings
    #: What the store was built with.
    options: BackendOptions
    backend: LockBackend
    manager: LockManager
    sinks: Sinks
    wake: Waker
    unique_claims: UniqueClaims
    #: Seconds for which a finished task is remembered.
    remembers: float
    #: ``task_time_limit``: to look up what is not set takes Celery longer than all the settings.
    time_limit: float | None

    def existing_store(self) -> LockBackend:
        """The store, for a process that only looks: it makes none.

        Raises :exc:`~celery_dlock.BackendUnavailable` where there is none yet.
        """
        if missing := self.backend.missing():
            raise BackendUnavailable(missing)
        return self.backend

    def lease_time(self, ttl: float | None) -> int:
        """The *ttl* of a task, or ``dlock_ttl``, in microseconds.

        Raises :exc:`~celery_dlock.ConfigurationError` for one that the store cannot keep.
        """
        ttl, shared = ttl or self.settings.ttl, self.options.ttl
        if ttl > shared and not lease_per_task(type(self.backend)):
            raise ConfigurationError(
                f"ttl={ttl:g}: all locks of a process end together in {type(self.backend).__name__}"
                f", and this one's last for {shared:g} s: set dlock_ttl = {ttl:g}"
            )
        return int(ttl * SECOND)

    def done_ttl(self, *, queues: bool) -> int:
        """For how many microseconds a finished task is remembered.

        Of one that was woken a second wake may be on its way for so long.
        """
        least = WAKE_AGAIN_LAST if queues else 0
        return max(int(self.remembers * SECOND), least)


def lease_per_task(store: type[LockBackend]) -> bool:
    """Whether each lock of *store* may have its own lease time."""
    return Trait.LEASE_PER_TASK in store.traits


class _ProcessRuntimes:
    """The runtimes of one process, and whether it forks children as long as it lives."""

    def __init__(self) -> None:
        self.runtimes: WeakKeyDictionary[Celery, Runtime] = WeakKeyDictionary()
        self.forking = False
        self.mutex = threading.Lock()


_processes = PerProcess(_ProcessRuntimes)

#: What tests have done with an application before this process uses its store or its settings.
before_use: list[Callable[[Any], None]] = []


def runtime(app: Any) -> Runtime:
    """The runtime of *app* in this process.

    Raises :exc:`~celery_dlock.ConfigurationError` when the configuration is not usable. It does
    not connect to the store.
    """
    app, process = real_app(app), _this_process()
    for begin in before_use:
        begin(app)
    kept = process.runtimes.get(app)
    if kept is not None:
        return kept
    with process.mutex:
        if app not in process.runtimes:
            with naming(app):
                process.runtimes[app] = _build(app)
        return process.runtimes[app]


def will_fork(app: Any) -> None:
    """From now on this process forks children that use the store of *app*."""
    _this_process().forking = True
    forget(app)  # it may have a connection that children must not see


def forget(app: Any) -> None:
    """Close and drop the runtime of *app*; the next use builds it from the configuration anew."""
    process = _this_process()
    with process.mutex:
        kept = process.runtimes.pop(real_app(app), None)
    if kept is not None:
        kept.manager.close()


def finish(within: float) -> None:
    """Wait, as the process ends, until its stores have heard what has left: *within* seconds."""
    until = time.monotonic() + within
    for kept in list(_this_process().runtimes.values()):
        kept.manager.finish(max(0.0, until - time.monotonic()))


@dataclass(frozen=True, slots=True)
class _InMemory:
    """The store of an application that is kept in memory; a forked process does not share it."""

    options: BackendOptions
    backend: LockBackend
    pid: int


ANOTHER_PROCESS = "the locks are in the memory of a test's process, and this is another process"

#: The applications of which :func:`kept_in_memory` keeps the locks.
_in_memory: WeakKeyDictionary[Celery, _InMemory] = WeakKeyDictionary()


@contextmanager
def kept_in_memory(app: Any, clock: Clock) -> Iterator[None]:
    """In the block *app* has a ``memory://`` of its own that goes by *clock*.

    Its events go to no history and to no sink that the settings name, only to callables. The rest
    of its configuration counts, but for what is asked of the store that it names. Raises
    :exc:`~celery_dlock.ConfigurationError` if that is wrong.
    """
    app = real_app(app)
    forget(app)
    with naming(app):
        options = replace(Settings.from_conf(app.conf, url="memory://").options, clock=clock)
    _in_memory[app] = _InMemory(options, open_backend("memory://", options), os.getpid())
    try:
        runtime(app)
        yield
    finally:
        del _in_memory[app]
        forget(app)


def settings_of(app: Any) -> Settings:
    """The settings of *app*, without what :func:`kept_in_memory` replaces.

    Raises :exc:`~celery_dlock.ConfigurationError` when they are wrong.
    """
    app = real_app(app)
    for begin in before_use:
        begin(app)
    with naming(app):
        if app not in _in_memory:
            return Settings.from_conf(app.conf)
        settings = Settings.from_conf(app.conf, url="memory://")
    callables = tuple(sink for sink in settings.sinks if callable(sink))
    return replace(settings, sinks=callables, history=None)


@contextmanager
def naming(app: Any) -> Iterator[None]:
    """In the block an error of the configuration names the application *app* that has it."""
    name = f"Celery app {app.main or '__main__'!r}: "
    try:
        yield
    except ConfigurationError as exc:
        if str(exc).startswith(name):
            raise
        raise ConfigurationError(f"{name}{exc}") from exc


def this_process(worker: str | None = None) -> str:
    """How people know this process: by its *worker* or its host, and its number."""
    return f"{worker or socket.gethostname()}:{os.getpid()}"


def _this_process() -> _ProcessRuntimes:
    forking.notice()  # nothing is begun with the parent's, however this process was forked
    return _processes()


def real_app(app: Any) -> Any:
    """``current_app`` is a proxy, and another one in every thread."""
    return app._get_current_object() if isinstance(app, Proxy) else app  # noqa: SLF001


def _build(app: Celery) -> Runtime:
    settings = settings_of(app)
    if memory := _in_memory.get(app):
        if memory.pid != os.getpid():
            raise ConfigurationError(ANOTHER_PROCESS)
        return _runtime(app, settings, memory.options, memory.backend)
    options = settings.options
    if not lease_per_task(backend_class(settings.url)):
        options = replace(options, ttl=max((settings.ttl, *ttls_of(app).values())))
    backend = open_backend(settings.url, options, forking=_this_process().forking)
    settings.check(type(backend))
    return _runtime(app, settings, options, backend)


def ttls_of(app: Any) -> dict[str, float]:
    """The tasks of *app* that name a ``ttl`` of their own, in seconds."""
    tasks = app.tasks.values() if app.finalized or app.autofinalize else ()
    defined = {task.name: getattr(task, "lock_definition", None) for task in tasks}
    return {name: lock.ttl for name, lock in defined.items() if lock and lock.ttl}


def _runtime(
    app: Celery, settings: Settings, options: BackendOptions, backend: LockBackend
) -> Runtime:
    sinks = Sinks(_sinks(app, settings), through=(SoftTimeLimitExceeded,))
    wake = Waker(app, backend, sinks, settings.broker)
    return Runtime(
        settings=settings,
        options=options,
        backend=backend,
        manager=LockManager(backend, wake, settings.fencing_epoch),
        sinks=sinks,
        wake=wake,
        unique_claims=UniqueClaims(backend),
        remembers=remembered(app, settings.done_ttl),
        time_limit=app.conf.task_time_limit,
    )


def _sinks(app: Celery, settings: Settings) -> list[Sink]:
    """The sinks that the settings name, those with ``from_app`` made for *app*."""
    sinks: list[Any] = [sink_named(s) if isinstance(s, str) else s for s in settings.sinks]
    if settings.history:
        sinks.append(load(*HISTORY, "dlock_history"))
    return [make(app) if (make := getattr(sink, "from_app", None)) else sink for sink in sinks]
