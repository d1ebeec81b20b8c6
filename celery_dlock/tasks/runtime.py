"""What one process keeps for one app: its settings, its store, its manager.

Built at first use, under a mutex, and anew in a process that was forked: a client made before
the fork would share its connection with the parent.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery
from kombu.utils.imports import symbol_by_name

from celery_dlock.backends.base import LockBackend
from celery_dlock.contention import Policy, policy_named
from celery_dlock.core.events import Sink, Sinks
from celery_dlock.core.manager import LockManager
from celery_dlock.registry import open_backend
from celery_dlock.settings import Settings

_mutex = threading.Lock()
_runtimes: WeakKeyDictionary[Celery, Runtime] = WeakKeyDictionary()
_inherited: list[Runtime] = []


@dataclass(frozen=True, slots=True)
class Runtime:
    """The objects of one process and one app."""

    pid: int
    settings: Settings
    backend: LockBackend
    manager: LockManager
    sinks: Sinks
    policy: Policy


def runtime(app: Any) -> Runtime:
    """The runtime of *app* in this process.

    Raises :exc:`~celery_dlock.ConfigurationError` when the configuration is not usable. It does
    not connect to the store.
    """
    app = app._get_current_object() if hasattr(app, "_get_current_object") else app  # noqa: SLF001
    found = _runtimes.get(app)
    if found is not None and found.pid == os.getpid():
        return found
    with _mutex:
        found = _runtimes.get(app)
        if found is not None:
            if found.pid == os.getpid():
                return found
            # Kept, never closed: closing would speak to the store over the parent's connection.
            _inherited.append(found)
        _runtimes[app] = built = _build(app)
        return built


def forget(app: Any) -> None:
    """Close and drop the runtime of *app*; the next use builds it from the configuration anew."""
    with _mutex:
        found = _runtimes.pop(app, None)
    if found is not None and found.pid == os.getpid():
        found.backend.close()


def _build(app: Celery) -> Runtime:
    settings = Settings.from_conf(app.conf)
    backend = open_backend(settings.url, settings.options)
    settings.check(type(backend))
    sinks: list[Sink] = [symbol_by_name(sink) for sink in settings.sinks]
    return Runtime(
        pid=os.getpid(),
        settings=settings,
        backend=backend,
        manager=LockManager(backend, settings.fencing_epoch),
        sinks=Sinks(sinks),
        policy=policy_named(settings.on_contention),
    )


def _after_fork_in_child() -> None:
    """Another thread of the parent may have held the mutex; in the child nobody would free it."""
    global _mutex
    _mutex = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
