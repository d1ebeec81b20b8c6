"""What is checked when a worker starts, so that no message is the first to find out.

A boot step and not a signal: what a receiver of a signal raises is swallowed.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from celery import bootsteps
from celery.app import trace

from celery_dlock import runtime
from celery_dlock.delivery.abort import IN_GREENLETS
from celery_dlock.delivery.carry_out import tell_briefly
from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.locks.throttled_warning import speak_for_children
from celery_dlock.messages.countdown import visibility_timeout
from celery_dlock.not_started import or_not_started
from celery_dlock.policies.shipped import Reschedule
from celery_dlock.stores.base import Trait

logger = logging.getLogger("celery_dlock")

#: The function that Celery makes for each task.
_CELERYS = f"{trace.__name__}.build_tracer.<locals>.trace_task"


class CheckAtStart(bootsteps.Step):  # type: ignore[misc]
    """Refuses to start a worker whose configuration cannot keep what the library promises.

    The tracer is looked at when the pool is there, which may have replaced it, and has not forked.
    """

    requires = frozenset({"celery.worker.components:Pool"})

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        with or_not_started(), runtime.naming(parent.app):
            self._check(parent)

    def _check(self, parent: Any) -> None:
        app = parent.app
        check_decorators(app)
        check_protocol(app)
        prefork = parent.pool_cls.__module__ == "celery.concurrency.prefork"
        if prefork:
            runtime.will_fork(app)
        process = runtime.runtime(app)
        if prefork and Trait.MULTI_PROCESS not in process.backend.traits:
            raise ConfigurationError(
                f"{process.settings.url} lives in one process, and a prefork worker has several: "
                "use sqlite:///dlock.db on a single machine, or a store with a server"
            )
        if prefork:
            process.sinks.warn_of_unseen()
        check_leases(app, process)
        check_broker(process)
        if getattr(parent.pool_cls, "is_green", False):
            check_aborts(app)
        check_countdowns(app)
        tell_briefly()
        speak_for_children()

    def create(self, parent: Any) -> None:
        with or_not_started():
            check_tracer(parent.app)


def check_decorators(app: Any) -> None:
    """Refuse ``@app.task`` over ``@locked_task``, which sends a message to call the inner task."""
    for name, task in app.tasks.items():
        if hasattr(task.run, "lock_definition"):
            raise ConfigurationError(
                f"task {name}: @locked_task already makes a task: remove the @app.task above it, "
                "and give its options to @locked_task, with app="
            )


def check_protocol(app: Any) -> None:
    """Refuse ``reserve="chain"`` where messages do not say which task comes next."""
    if app.conf.task_protocol != 1:
        return
    for name, task in app.tasks.items():
        definition = getattr(task, "lock_definition", None)
        if definition and definition.reserve == "chain":
            raise ConfigurationError(
                f'task {name}: reserve="chain" keeps nothing with task_protocol = 1, whose '
                "messages do not name the next task of the chain: remove that setting (Celery's "
                "default is 2)"
            )


def check_leases(app: Any, process: runtime.Runtime) -> None:
    """Refuse a lease time that a store does not grant whose locks all end together."""
    ttls = runtime.ttls_of(app)
    if not ttls or runtime.lease_per_task(type(process.backend)):
        return
    try:
        granted = process.backend.granted()
    except BackendUnavailable as exc:
        logger.warning(
            "it is not known whether the lock store grants the ttl of each task: %s", exc
        )
        return
    name, ttl = max(ttls.items(), key=lambda item: item[1])
    if granted is not None and ttl > granted:
        raise ConfigurationError(
            f"task {name}: ttl={ttl:g} is more than the lock store grants: {granted:g} s, for all "
            "locks of a process together"
        )


def check_tracer(app: Any) -> None:
    """Refuse a tracer that stands in for Celery's, as pools for coroutines bring one.

    It calls a task in another thread than that of its request. A delivery would see the request of
    another one, and no lock would be released.
    """
    task = next((task for task in app.tasks.values() if hasattr(task, "lock_definition")), None)
    if task is None:
        return
    tracer = trace.build_tracer(task.name, task, app=app)
    if not _leads_to_celerys(tracer):
        raise ConfigurationError(
            f"task {task.name} has a lock, and {tracer.__module__} has replaced Celery's tracer, "
            "under which no lock would be released: run tasks with a lock in a worker with one of "
            "Celery's own pools, or make them plain tasks whose bodies use `async with lock(...)`"
        )


def _leads_to_celerys(tracer: Callable[..., Any]) -> bool:
    """Whether *tracer* is Celery's own, or has it in its closure, as tools that watch errors do."""
    functions = [tracer]
    for function in functions:
        innermost = inspect.unwrap(function)
        if f"{innermost.__module__}.{getattr(innermost, '__qualname__', '')}" == _CELERYS:
            return True
        functions += [inner for inner in _closure(innermost) if inner not in functions]
    return False


def _closure(function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # it is empty
            if inspect.isfunction(cell.cell_contents):
                yield cell.cell_contents


def check_broker(process: runtime.Runtime) -> None:
    """Refuse a broker whose name cannot be told: its messages could be taken for another's."""
    logger.info("the name of this broker in parked messages is %s", process.wake.broker)


def check_aborts(app: Any) -> None:
    """Refuse to abort bodies in greenlets."""
    for task in app.tasks.values():
        definition = getattr(task, "lock_definition", None)
        if definition and definition.aborts:
            raise ConfigurationError(f"task {task.name}: {IN_GREENLETS}")


def check_countdowns(app: Any) -> None:
    """Refuse a backoff that outlasts the broker's visibility timeout."""
    visible = visibility_timeout(app)
    for task in app.tasks.values():
        definition = getattr(task, "lock_definition", None)
        policy = definition and definition.policy
        if isinstance(policy, Reschedule) and policy.backoff.cap >= visible:
            raise ConfigurationError(
                f"task {task.name} may be rescheduled by {policy.backoff.cap:g} s, but the broker "
                f"redelivers after visibility_timeout={visible:g} s: lower the backoff's cap, by "
                f"on_contention=Reschedule(backoff=FullJitter(cap={visible / 2:g})), for all tasks "
                "by lock_on_contention in their base class, or raise visibility_timeout in "
                "broker_transport_options"
            )
