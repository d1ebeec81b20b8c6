"""What one process keeps for one app: its settings, its store, its manager.

Built at first use, under a mutex, and anew in a process that was forked: a client made before
the fork would share its connection with the parent.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded
from celery.local import Proxy

from celery_dlock.backends.base import Clock, LockBackend, Trait
from celery_dlock.backends.memory import MemoryBackend
from celery_dlock.contention import Policy, policy_named
from celery_dlock.core.events import Sink, Sinks
from celery_dlock.core.lease import SECOND
from celery_dlock.core.manager import LockManager
from celery_dlock.core.turns import CALL_AGAIN_LAST
from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.registry import HISTORY, load_sink, open_backend, sink_named
from celery_dlock.settings import Settings
from celery_dlock.tasks.waking import Waker


@dataclass(frozen=True, slots=True)
class Runtime:
    """The objects of one process and one app."""

    settings: Settings
    backend: LockBackend
    manager: LockManager
    sinks: Sinks
    policy: Policy
    wake: Waker

    def existing_store(self) -> LockBackend:
        """The store for whoever only looks, which makes none.

        Raises :exc:`~celery_dlock.BackendUnavailable` where there is none yet.
        """
        if missing := self.backend.missing():
            raise BackendUnavailable(missing)
        return self.backend

    def lease_time(self, ttl: float | None) -> int:
        """The *ttl* of a task, or ``dlock_ttl``, in microseconds.

        Raises :exc:`~celery_dlock.ConfigurationError` for one that the store cannot keep.
        """
        if ttl is not None and Trait.LEASE_PER_TASK not in self.backend.traits:
            raise ConfigurationError(
                f"ttl= needs a store with the trait {Trait.LEASE_PER_TASK!s}, which "
                f"{type(self.backend).__name__} lacks: set dlock_ttl for all locks"
            )
        return int((ttl or self.settings.ttl) * SECOND)

    def done_ttl(self, *, queues: bool) -> int:
        """For how many microseconds a finished task is remembered.

        Of one that was called a second call may be on its way for so long.
        """
        least = CALL_AGAIN_LAST if queues else 0
        return max(int(self.settings.done_ttl * SECOND), least)


class _Process:
    """The runtimes of this process. In a forked child the parent's are kept and never used."""

    def __init__(self) -> None:
        self.runtimes: WeakKeyDictionary[Celery, Runtime] = WeakKeyDictionary()
        self.parents: list[WeakKeyDictionary[Celery, Runtime]] = []
        self.forking = False
        self.mutex = threading.Lock()

    def after_fork_in_child(self) -> None:
        """Start anew.

        Another thread may have held the mutex, and here nobody would free it. The parent's
        clients stay referenced: closing one would speak to the store over the parent's connection.
        """
        self.mutex = threading.Lock()
        self.forking = False
        self.parents.append(self.runtimes)
        self.runtimes = WeakKeyDictionary()


_process = _Process()
os.register_at_fork(after_in_child=_process.after_fork_in_child)


def runtime(app: Any) -> Runtime:
    """The runtime of *app* in this process.

    Raises :exc:`~celery_dlock.ConfigurationError` when the configuration is not usable. It does
    not connect to the store.
    """
    app = _real(app)
    found = _process.runtimes.get(app)
    if found is not None:
        return found
    with _process.mutex:
        if app not in _process.runtimes:
            _process.runtimes[app] = _build(app)
        return _process.runtimes[app]


def will_fork(app: Any) -> None:
    """From now on this process forks children that use the store of *app*."""
    _process.forking = True
    forget(app)  # it may have a connection that children must not see


def forget(app: Any) -> None:
    """Close and drop the runtime of *app*; the next use builds it from the configuration anew."""
    with _process.mutex:
        found = _process.runtimes.pop(_real(app), None)
    if found is not None:
        found.manager.close()


def keep_in_memory(app: Any, clock: Clock) -> None:
    """Until :func:`forget` is called, *app* has a ``memory://`` that goes by *clock*.

    The rest of its configuration counts, but for what is asked of the store that it names.
    """
    forget(app)
    app = _real(app)
    settings = Settings.from_conf(app.conf, url="memory://")
    built = _runtime(app, settings, MemoryBackend(replace(settings.options, clock=clock)))
    with _process.mutex:
        _process.runtimes[app] = built


def _real(app: Any) -> Any:
    """``current_app`` is a proxy, and another one in every thread."""
    return app._get_current_object() if isinstance(app, Proxy) else app  # noqa: SLF001


def _build(app: Celery) -> Runtime:
    settings = Settings.from_conf(app.conf)
    backend = open_backend(settings.url, settings.options, forking=_process.forking)
    settings.check(type(backend))
    return _runtime(app, settings, backend)


def _runtime(app: Celery, settings: Settings, backend: LockBackend) -> Runtime:
    told = Sinks(_sinks(app, settings), through=(SoftTimeLimitExceeded,))
    wake = Waker(app, backend, told, settings.broker)
    return Runtime(
        settings=settings,
        backend=backend,
        manager=LockManager(backend, wake, settings.fencing_epoch),
        sinks=told,
        policy=policy_named(settings.on_contention or "reschedule"),
        wake=wake,
    )


def _sinks(app: Celery, settings: Settings) -> list[Sink]:
    """One that wants to know the app is made for it."""
    found: list[Any] = [sink_named(s) if isinstance(s, str) else s for s in settings.sinks]
    if settings.history:
        found.append(load_sink(*HISTORY, "dlock_history"))
    return [make(app) if (make := getattr(sink, "from_app", None)) else sink for sink in found]
