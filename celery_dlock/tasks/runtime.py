"""What one process keeps for one app: its settings, its store, its manager.

Built at first use, under a mutex, and anew in a process that was forked: a client made before
the fork would share its connection with the parent.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakKeyDictionary

from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded
from celery.local import Proxy
from kombu.utils.imports import symbol_by_name

from celery_dlock.backends.base import LockBackend
from celery_dlock.contention import Policy, Queueing, policy_named
from celery_dlock.core.events import Sink, Sinks
from celery_dlock.core.lease import SECOND
from celery_dlock.core.manager import LockManager
from celery_dlock.core.turns import CALL_AGAIN_LAST
from celery_dlock.registry import open_backend
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

    def done_ttl(self, asks: Queueing | None) -> int:
        """For how many microseconds a finished task is remembered.

        Of one that was called a second call may be on its way for so long.
        """
        least = CALL_AGAIN_LAST if asks else 0
        return max(int(self.settings.done_ttl * SECOND), least)


class _Process:
    """The runtimes of this process. In a forked child the parent's are kept and never used."""

    def __init__(self) -> None:
        self.runtimes: WeakKeyDictionary[Celery, Runtime] = WeakKeyDictionary()
        self.parents: list[WeakKeyDictionary[Celery, Runtime]] = []
        self.mutex = threading.Lock()

    def after_fork_in_child(self) -> None:
        """Start anew.

        Another thread may have held the mutex, and here nobody would free it. The parent's
        clients stay referenced: closing one would speak to the store over the parent's connection.
        """
        self.mutex = threading.Lock()
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


def forget(app: Any) -> None:
    """Close and drop the runtime of *app*; the next use builds it from the configuration anew."""
    with _process.mutex:
        found = _process.runtimes.pop(_real(app), None)
    if found is not None:
        found.manager.close()


def _real(app: Any) -> Any:
    """``current_app`` is a proxy, and another one in every thread."""
    return app._get_current_object() if isinstance(app, Proxy) else app  # noqa: SLF001


def _build(app: Celery) -> Runtime:
    settings = Settings.from_conf(app.conf)
    backend = open_backend(settings.url, settings.options)
    settings.check(type(backend))
    sinks = [cast("Sink", symbol_by_name(sink)) for sink in settings.sinks]  # type: ignore[no-untyped-call]
    told = Sinks(sinks, through=(SoftTimeLimitExceeded,))
    wake = Waker(app, backend, told, settings.broker)
    return Runtime(
        settings=settings,
        backend=backend,
        manager=LockManager(backend, wake, settings.fencing_epoch),
        sinks=told,
        policy=policy_named(settings.on_contention or "reschedule"),
        wake=wake,
    )
