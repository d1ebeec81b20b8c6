"""pytest-celery's ``celery_setup`` over nodes that are processes, and a cluster of lock stores.

With ``DLOCK_NODES=docker`` the broker and the results are pytest-celery's own Redis containers;
the workers are processes in either case, as it is this environment's package that is tested.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from pytest_celery import (
    CeleryBackendCluster,
    CeleryBrokerCluster,
    CeleryTestBackend,
    CeleryTestBroker,
    CeleryWorkerCluster,
)

from tests.services.brokers import close
from tests.services.lab import Lab
from tests.services.nodes import (
    LockStoreCluster,
    LockStoreNode,
    ProcessContainer,
    WorkerContainer,
    WorkerNode,
)
from tests.services.redis import RedisServer
from tests.services.stores import Store

ON_DOCKER = os.environ.get("DLOCK_NODES") == "docker"


@pytest.fixture
def celery_broker(request: pytest.FixtureRequest) -> CeleryTestBroker:
    if ON_DOCKER:
        return request.getfixturevalue("celery_redis_broker")
    server: RedisServer = request.getfixturevalue("own_redis_server")
    return CeleryTestBroker(ProcessContainer("broker", server, server.url))


@pytest.fixture
def celery_backend(request: pytest.FixtureRequest) -> CeleryTestBackend:
    if ON_DOCKER:
        return request.getfixturevalue("celery_redis_backend")
    server: RedisServer = request.getfixturevalue("redis_server")
    return CeleryTestBackend(ProcessContainer("results", server, server.url))


@pytest.fixture
def celery_broker_cluster(celery_broker: CeleryTestBroker) -> CeleryBrokerCluster:
    return CeleryBrokerCluster(celery_broker)


@pytest.fixture
def celery_backend_cluster(celery_backend: CeleryTestBackend) -> CeleryBackendCluster:
    return CeleryBackendCluster(celery_backend)


@pytest.fixture
def lock_store_cluster(
    request: pytest.FixtureRequest, store: Store, tmp_path: Path
) -> LockStoreCluster:
    """The store that the test is parametrized with, as a node."""
    return LockStoreCluster(LockStoreNode(store.settings(request, tmp_path)))


@pytest.fixture
def celery_setup_config(
    celery_setup_config: dict[str, Any], lock_store_cluster: LockStoreCluster
) -> dict[str, Any]:
    return {**celery_setup_config, **lock_store_cluster[0].settings, "dlock_ttl": 5.0}


@pytest.fixture
def lab(celery_setup_config: dict[str, Any], tmp_path: Path) -> Iterator[Lab]:
    lock = {"policy": "queue", "ttl": None}
    lab = Lab(tmp_path, {"celery": celery_setup_config, "lock": lock, "task": {"acks_late": True}})
    yield lab
    close(lab.app)


@pytest.fixture
def celery_setup_app(lab: Lab) -> Celery:
    return lab.app


@pytest.fixture
def celery_worker_cluster(lab: Lab) -> Iterator[CeleryWorkerCluster]:
    """Two workers of two slots each."""
    with ExitStack() as stack:
        workers = [stack.enter_context(lab.worker("threads", concurrency=2)) for _ in range(2)]
        containers = [WorkerContainer(w.log_path.stem, w, log=w.log_path) for w in workers]
        yield CeleryWorkerCluster(*(WorkerNode(each, lab.app) for each in containers))
