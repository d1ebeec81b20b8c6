"""Labs on a real Redis: broker, results and locks, each in a database of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.services.effects import Effects
from tests.services.lab import Lab
from tests.services.redis import RedisServer

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
def make_lab(tmp_path: Path, redis_server: RedisServer, effects: Effects) -> MakeLab:
    """``make_lab(celery={...}, lock={...}, task={...}, faults=[...])``: late ack, short leases."""
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
        return Lab(tmp_path, {"celery": settings, **options})

    return make
