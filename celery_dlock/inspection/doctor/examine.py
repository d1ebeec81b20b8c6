"""Which checks an application needs: those of its store, of its broker, and of its tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

from celery_dlock.errors import ConfigurationError
from celery_dlock.inspection.doctor.broker import examine_broker
from celery_dlock.inspection.doctor.case import Case
from celery_dlock.inspection.doctor.clock import Clock
from celery_dlock.inspection.doctor.finding import Finding, asked
from celery_dlock.inspection.doctor.locked import Locked
from celery_dlock.inspection.doctor.secrets import secrets_of, shown
from celery_dlock.inspection.doctor.tasks import examine_tasks
from celery_dlock.registry import scheme_of
from celery_dlock.tasks.runtime import runtime
from celery_dlock.tasks.worker import check_countdowns, check_leases

_HERE = "celery_dlock.inspection.doctor"

#: The checks of a store by the scheme of its URL, imported when they are needed: they need drivers.
STORES: Mapping[str, str] = {
    "memory": "memory:examine_memory",
    "sqlite": "sqlite:examine_sqlite",
    "redis": "redis:examine_redis",
    "rediss": "redis:examine_redis",
    "redis+unix": "redis:examine_redis",
    "redis+sentinel": "redis_sentinel:examine_sentinel",
    "redis+cluster": "redis_cluster:examine_cluster",
    "redlock": "redlock:examine_redlock",
    "zookeeper": "zookeeper:examine_zookeeper",
    "etcd": "etcd:examine_etcd",
    "etcd+https": "etcd:examine_etcd",
}

_ORDER = ("broken", "weak", "unknown")


def examine(app: Any, clock: Clock = time.time) -> list[Finding]:
    """What breaks a promise in the configuration of *app*, the worst first. Changes nothing.

    What cannot be looked at is a finding, too; there is no password in any.
    """
    secrets = secrets_of(app.conf)
    found = [shown(finding, secrets) for finding in _examine(app, clock)]
    return sorted(found, key=lambda finding: _ORDER.index(finding.severity))


def _examine(app: Any, clock: Clock) -> Iterator[Finding]:
    try:
        app.loader.import_default_modules()
        app.finalize()
        here = runtime(app)
        check_leases(app, here)
        check_countdowns(app, here.policy)
    except Exception as exc:  # a sink that cannot be imported, a task that is defined wrongly
        ours = isinstance(exc, ConfigurationError)
        yield Finding(
            "settings",
            "broken",
            "settings",
            promise="No worker starts. The rest is looked at once this is mended.",
            found=str(exc) if ours else f"{type(exc).__name__}: {exc}",
            mend="do as it says",
        )
        return
    case = Case(app, here.settings, clock)
    tasks = Locked.all_of(case, here.policy)
    yield from asked("store", _store(case))
    yield from asked("broker", examine_broker(case, tasks))
    yield from asked("tasks", examine_tasks(case, tasks, type(here.backend)))


def _store(case: Case) -> Iterator[Finding]:
    scheme = scheme_of(case.settings.url)
    if scheme not in STORES:
        yield Finding(
            "store-unread",
            "unknown",
            "store",
            promise="Whether the store is configured well cannot be said.",
            found=f"the doctor knows no checks for {scheme}://",
            mend="see the documentation of that store",
        )
        return
    module, _, name = STORES[scheme].partition(":")
    checks: Callable[[Case], Iterator[Finding]] = getattr(import_module(f"{_HERE}.{module}"), name)
    yield from checks(case)
