"""Labs on a real Redis: broker, results and locks, each in a database of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from celery_dlock.runtime import runtime
from tests.services.brokers import close
from tests.services.effects import Effects
from tests.services.lab import Lab
from tests.services.redis import RedisServer
from tests.services.until import until

MakeLab = Callable[..., Lab]

BROKER, RESULTS, LOCKS = 11, 12, 13


def database(server: RedisServer, number: int) -> str:
    return f"redis://127.0.0.1:{server.port}/{number}"


@pytest.fixture
def effects(tmp_path: Path) -> Effects:
    resource = Effects(tmp_path)
    resource.create()
    return resource


@pytest.fixture
def make_lab(tmp_path: Path, redis_server: RedisServer, effects: Effects) -> Iterator[MakeLab]:
    """``make_lab(celery={...}, lock={...}, task={...}, faults=[...])``: late ack, short leases."""
    labs: list[Lab] = []
    for number in (BROKER, RESULTS, LOCKS):
        with redis_server.client() as client:
            client.select(number)
            client.flushdb()

    def make(
        celery: Mapping[str, Any] | None = None,
        lock: Mapping[str, Any] | None = None,
        task: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Lab:
        settings = {
            "broker_url": database(redis_server, BROKER),
            "result_backend": database(redis_server, RESULTS),
            "dlock_url": database(redis_server, LOCKS),
            "worker_prefetch_multiplier": 1,
            **(celery or {}),
        }
        options["lock"] = {"ttl": 2.0, **(lock or {})}
        options["task"] = {"acks_late": True, **(task or {})}
        labs.append(Lab(tmp_path, {"celery": settings, **options}))
        return labs[-1]

    yield make
    for lab in labs:
        close(lab.app)


def all_have_left(lab: Lab, *orders: str) -> None:
    """Wait until the keys of *orders* are free: a task leaves after its result is there."""
    until(f"{orders} are free", lambda: nothing_is_held(lab, *orders))


def nothing_is_held(lab: Lab, *orders: str) -> bool:
    """Whether the key of none of *orders* is held."""
    backend = runtime(lab.app).backend
    return not any(backend.peek(f"order:{order}").holders for order in orders)
