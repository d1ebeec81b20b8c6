"""Labs without a server: the shop's broker in a folder, SQLite for locks and results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kombu.message import Message

from celery_dlock import Lease, LockedTask, Ordered, lock
from celery_dlock.runtime import forget, runtime
from celery_dlock.settings import Settings
from celery_dlock.testing import ManualClock
from celery_dlock.worker.periodic import EndRevoked
from celery_dlock.worker.request import LockedRequest
from example_project.broker import transport_options
from tests.services.brokers import kept_in_sqlite, over_folder
from tests.services.desk import Desk, open_desk
from tests.services.lab import Lab
from tests.services.stores import EVERY, Store, at_the_desk
from tests.services.unique import Make, maker

MakeLab = Callable[..., Lab]

#: What a caller may ask for, of which nothing is lost while a message waits.
OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "links": {},
    "properties": {"priority": 3, "reply_to": "me", "delivery_mode": 1},
    "headers": {"headers": {"tenant": "blue", "trace": {"id": 7}}, "shadow": "pay"},
    "limits": {"time_limit": 20, "soft_time_limit": 10, "ignore_result": True},
    "an end": {"expires": datetime(2100, 1, 1, tzinfo=UTC)},
    "a canvas": {"root_id": "root", "parent_id": "parent", "group_id": "group", "group_index": 3},
    "stamps": {"stamped_headers": ["tenant"], "tenant": "blue"},
    "yaml": {"serializer": "yaml"},
    "pickle": {"serializer": "pickle"},
    "msgpack": {"serializer": "msgpack"},
}


def embedded(folder: Path) -> dict[str, Any]:
    """Celery's configuration for a broker, results and locks below *folder*."""
    (folder / "results").mkdir()
    return {
        "broker_url": "filesystem://",
        "broker_transport": "example_project.broker:Transport",
        "broker_transport_options": transport_options(folder / "broker"),
        "result_backend": f"file://{folder / 'results'}",
        "dlock_url": f"sqlite:///{folder / 'locks.db'}",
    }


def received(desk: Desk, message: Message) -> LockedRequest:
    """*message* in the hands of a worker."""
    return LockedRequest(
        message,
        on_ack=message.ack_log_error,
        on_reject=message.reject_log_error,
        app=desk.app,
        hostname="desk",
        eventer=desk.eventer,
        task=desk.app.tasks[message.headers["task"]],
        connection_errors=(OSError,),
    )


@pytest.fixture
def make_lab(tmp_path: Path) -> Iterator[MakeLab]:
    """``make_lab(celery={...}, lock={...}, task={...})``: a lab with these on top of its own."""

    def make(celery: dict[str, Any] | None = None, **options: dict[str, Any]) -> Lab:
        config = {"celery": {**embedded(tmp_path), **(celery or {})}, **options}
        labs.append(Lab(tmp_path, config))
        return labs[-1]

    labs: list[Lab] = []
    yield make
    for lab in labs:
        forget(lab.app)  # from Python 3.13 on an SQLite connection that is left open is a warning


def on_store(
    request: pytest.FixtureRequest, folder: Path, store: Store, policy: str = "", **config: Any
) -> Lab:
    """A lab with its locks in *store*, all of one lease, and all else in *folder*.

    *config* is on top of its own: ``celery={...}``, ``lock={...}``, ``task={...}``.
    """
    own: dict[str, dict[str, Any]] = {
        "celery": {
            **over_folder(folder),
            **kept_in_sqlite(folder),
            **store.settings(request, folder),
            "dlock_ttl": 2.0,
        },
        "lock": {"ttl": None, **({"policy": policy} if policy else {})},
        "task": {"acks_late": True},
    }
    for part in own:
        own[part] |= config.pop(part, {})
    return Lab(folder, {**own, **config})


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What happens at the desk happens over several stores, where a test or its file says so."""
    if "desk" not in metafunc.fixturenames:
        return
    chosen = metafunc.definition.get_closest_marker("stores")
    if metafunc.definition.get_closest_marker("every_store"):
        metafunc.parametrize("store", EVERY, indirect=True)
    elif chosen:
        metafunc.parametrize("store", at_the_desk(*chosen.args), indirect=True)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Store | None:
    """The store of the desk; without one it is in memory."""
    return getattr(request, "param", None)


@pytest.fixture(name="desk")
def a_desk(request: pytest.FixtureRequest, store: Store | None) -> Iterator[Desk]:
    """The path of a message through a worker, in this process and without waiting."""
    config = store.settings(request, request.getfixturevalue("tmp_path")) if store else {}
    with open_desk(**config) as made:
        yield made
        made.patch.undo()
        forget(made.app)


@pytest.fixture
def clock(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The clock of the desk's store."""
    clock = ManualClock()
    given = runtime(desk.app).settings.options
    forget(desk.app)
    options = property(lambda settings: replace(given, clock=clock))
    monkeypatch.setattr(Settings, "options", options)
    desk.clock = clock
    return clock


@pytest.fixture
def charge(desk: Desk) -> LockedTask:
    @desk.locked("order:{order}", name="charge", max_retries=0)
    def charge(order: Any, before: int = 0) -> int:
        return before + 1

    return charge


def charging(desk: Desk, key: Any = "order:{order}", **options: Any) -> LockedTask:
    """A task that notes its order and returns it."""

    @desk.locked(key, name="charge", **options)
    def charge(order: str = "42") -> str:
        desk.ran.append(order)
        return order

    return charge


@contextmanager
def held(desk: Desk, key: str = "order:42", **options: Any) -> Iterator[Lease]:
    """*key*, held by somebody else."""
    block = lock(key, app=desk.app, timeout=0, **options)
    lease = Context().run(block.acquire)
    try:
        yield lease
    finally:
        block.release()


def refused(desk: Desk, key: str = "order:42", queue: str = "celery") -> tuple[Message, Message]:
    """Deliver the next message while *key* is held; the message, and the one published for it."""
    with lock(key, app=desk.app, timeout=0):
        first = desk.deliver(queue)
    again = desk.take(queue)
    assert again is not None, "nothing was published again"
    return first, again


def revoke(desk: Desk, task_id: str) -> None:
    """What every worker does when it hears of a revocation."""
    EndRevoked(SimpleNamespace(app=desk.app))._end({task_id})


@pytest.fixture
def make_ordered(desk: Desk) -> Callable[..., LockedTask]:
    """``make_ordered(policy, key=…)``: a task that takes its place where it is published."""

    def make(policy: Ordered | None = None, **options: Any) -> LockedTask:
        options = {"key": "order:{order}", "name": "charge", **options}

        @desk.locked(on_contention=policy or Ordered(), **options)
        def charge(order: str, number: int = 0) -> int:
            desk.ran.append(number)
            return number

        return charge

    return make


@pytest.fixture(name="make")
def make_unique(desk: Desk) -> Make:
    """``make(unique="done", …)``: see ``tests.services.unique``."""
    return maker(desk)


def nothing_is_left(desk: Desk, key: str = "order:42") -> bool:
    """Whether nobody has the key, or its turn, or waits for it."""
    state = desk.store.peek(key)
    return not (state.holders or state.grants or state.waiting)
