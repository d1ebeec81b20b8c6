"""Applications to be examined: one where nothing is found but in its store, and what is found."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from celery import Celery
from celery._state import _on_app_finalizers

from celery_dlock import LockedTask, Queue
from celery_dlock.ops.doctor.examine import examine
from celery_dlock.ops.doctor.finding import Clock, Finding
from celery_dlock.runtime import forget
from example_project.broker import transport_options
from tests.services.redis import RedisServer
from tests.services.until import until

T = TypeVar("T")

#: Nothing is found in this of any task.
SOUND: dict[str, Any] = {
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    "worker_prefetch_multiplier": 1,
    "task_time_limit": 60,
}


def without_server(folder: Path) -> dict[str, Any]:
    """A broker of which nothing is found as long as the store keeps every message."""
    return {
        "broker_url": "filesystem://",
        "broker_transport": "example_project.broker:Transport",
        "broker_transport_options": transport_options(folder / "broker"),
    }


def over(url: str, **options: Any) -> dict[str, Any]:
    """Celery's configuration for this broker."""
    return {"broker_url": url, "broker_transport": None, "broker_transport_options": options}


def in_memory() -> dict[str, Any]:
    """A store of which nothing is found but that it is in one process."""
    return {"dlock_url": "memory://", "worker_pool": "threads"}


@contextmanager
def patient(folder: Path, task: dict[str, Any] | None = None, **conf: Any) -> Iterator[Celery]:
    """An application with one locked task, ``charge``, which is what *task* says."""
    app = Celery("patient", set_as_current=False)
    app.conf.update({**SOUND, **without_server(folder), **conf})
    options = {"lock_on_contention": Queue(keep=True), **(task or {})}

    def charge(order_id: int) -> None: ...

    def charge_fenced(order_id: int, *, fencing_token: int) -> None: ...

    body = charge_fenced if options.pop("fenced", False) else charge
    # Not shared: that would be a task of all applications of this process.
    app.task(base=LockedTask, shared=False, name="charge", lock_key="order:{order_id}", **options)(
        body
    )
    with _nothing_shared():
        app.finalize()
    try:
        yield app
    finally:
        forget(app)
        app.close()


@contextmanager
def _nothing_shared() -> Iterator[None]:
    """An application that is finalized here has no tasks of other tests of this process."""
    shared = set(_on_app_finalizers)
    _on_app_finalizers.intersection_update(
        {make for make in shared if make.__module__ == "celery.app.builtins"}
    )
    try:
        yield
    finally:
        _on_app_finalizers.update(shared)


def found(
    folder: Path,
    *,
    task: dict[str, Any] | None = None,
    clock: Clock | None = None,
    **conf: Any,
) -> dict[str, str]:
    """The names of the checks that find something in such an application, and how bad it is."""
    with patient(folder, task, **conf) as app:
        return bad(examine(app, clock) if clock else examine(app))


@contextmanager
def configured(*servers: RedisServer, **settings: str) -> Iterator[None]:
    """*settings* for as long as it takes: the servers are those of the whole run."""
    with ExitStack() as stack:
        for server in servers:
            client = stack.enter_context(server.client())
            for given, value in settings.items():
                name = given.replace("_", "-")
                stack.callback(client.config_set, name, client.config_get(name)[name])
                client.config_set(name, value)
        yield


def comes_to(expected: T, look: Callable[[], T]) -> T:
    """What *look* tells once that is *expected*, or at last: servers that elect come to rest."""
    seen: list[T] = []

    def same() -> bool:
        seen.append(look())
        return seen[-1] == expected

    with suppress(AssertionError):
        until("it is so", same)
    return seen[-1]


def lies_in_memory(folder: Path) -> bool:
    """Whether a file there is found, because it would not outlive the machine's next start."""
    told = subprocess.run(
        ["stat", "-f", "-c", "%T", folder], capture_output=True, text=True, check=True
    )
    return told.stdout.strip() in ("tmpfs", "ramfs")


def bad(findings: list[Finding]) -> dict[str, str]:
    return {finding.check: finding.severity for finding in findings}
