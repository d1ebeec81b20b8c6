"""What every test may ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery._state import _on_app_finalizers

from tests.services.etcd import etcd_server, own_etcd_server
from tests.services.etcd_cluster import own_etcd_cluster
from tests.services.mariadb import mariadb_server
from tests.services.pgbouncer import pgbouncer
from tests.services.postgresql import own_postgresql_server, postgresql_server, postgresql_standby
from tests.services.rabbitmq import own_rabbitmq_server, rabbitmq_server
from tests.services.redis import own_redis_server, redis_server
from tests.services.redis_cluster import own_redis_cluster, redis_cluster
from tests.services.redis_nodes import own_redis_nodes, redis_nodes
from tests.services.redis_sentinel import own_redis_sentinel, redis_sentinel
from tests.services.sqs import sqs_server
from tests.services.zookeeper import own_zookeeper_server, zookeeper_server
from tests.services.zookeeper_ensemble import own_zookeeper_ensemble

pytest_plugins = [
    "tests.proofs.record",
    "tests.services.logs",
    "tests.services.parallel",
    "tests.services.spent",
]

__all__ = [
    "etcd_server",
    "mariadb_server",
    "own_etcd_cluster",
    "own_etcd_server",
    "own_postgresql_server",
    "own_rabbitmq_server",
    "own_redis_cluster",
    "own_redis_nodes",
    "own_redis_sentinel",
    "own_redis_server",
    "own_zookeeper_ensemble",
    "own_zookeeper_server",
    "pgbouncer",
    "postgresql_server",
    "postgresql_standby",
    "rabbitmq_server",
    "redis_cluster",
    "redis_nodes",
    "redis_sentinel",
    "redis_server",
    "sqs_server",
    "zookeeper_server",
]


@pytest.fixture(autouse=True)
def no_shared_tasks() -> Iterator[None]:
    """Leave no shared tasks behind, which the next test's application would be given too."""
    before = set(_on_app_finalizers)
    yield
    _on_app_finalizers.intersection_update(before)
