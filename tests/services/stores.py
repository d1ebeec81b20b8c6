"""The table of lock stores: what runs over every store takes its parameter from here.

A store that is registered and has no row fails ``tests/contract/test_every_store.py``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from celery_dlock.registry import backend_class
from celery_dlock.stores.base import LockBackend

#: The stores that the oldest Celery and the other Pythons are tried with.
EVERYWHERE = {"memory", "sqlite", "redis"}

#: What a worker does with the answers of a store is shown over these: the machine itself, its rules
#: in another language, and the machine over a store that only compares and sets.
AT_THE_DESK = {"memory", "redis", "etcd"}

#: ``request.getfixturevalue``.
Fixture = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Store:
    """*url* is made from the run's fixtures and a folder; *server* is what ``mark.server`` takes.

    A store that is not *shared* lives in one process. Schemes that lead to the same class, as
    ``rediss`` does, are one store.
    """

    scheme: str
    url: Callable[[Fixture, Path], str]
    server: str | None = None
    shared: bool = True

    @property
    def backend(self) -> type[LockBackend]:
        return backend_class(f"{self.scheme}://")

    def param(self) -> Any:
        """A row of parameters, with the store's name and its server's marker."""
        marks = [pytest.mark.server(self.server)] if self.server else []
        marks += [] if self.scheme in EVERYWHERE else [pytest.mark.once]
        return pytest.param(self, marks=marks, id=self.scheme)

    def settings(self, request: pytest.FixtureRequest, folder: Path) -> dict[str, Any]:
        """Celery's configuration: this store, with keys that no other test has."""
        return {
            "dlock_url": self.url(request.getfixturevalue, folder),
            "dlock_key_prefix": f"test-{uuid.uuid4().hex}",
        }


STORES = (
    Store("memory", lambda fixture, folder: "memory://", shared=False),
    Store("sqlite", lambda fixture, folder: f"sqlite:///{folder / 'locks.db'}"),
    Store("redis", lambda fixture, folder: fixture("redis_server").url, "redis"),
    Store("zookeeper", lambda fixture, folder: fixture("zookeeper_server").url, "zookeeper"),
    Store("etcd", lambda fixture, folder: fixture("etcd_server").url, "etcd"),
    Store("postgresql", lambda fixture, folder: fixture("postgresql_server").url, "postgresql"),
    Store("redlock", lambda fixture, folder: fixture("redis_nodes").url, "redis"),
    Store("redis+sentinel", lambda fixture, folder: fixture("redis_sentinel").url, "redis"),
    Store("redis+cluster", lambda fixture, folder: fixture("redis_cluster").url, "redis"),
)

EVERY = [store.param() for store in STORES]

#: Those that several workers can share.
SHARED = [store.param() for store in STORES if store.shared]


def at_the_desk(*more: str) -> list[Any]:
    """Those over which a worker's part is shown; *more* have a part of their own in it."""
    return [store.param() for store in STORES if store.scheme in {*AT_THE_DESK, *more}]
