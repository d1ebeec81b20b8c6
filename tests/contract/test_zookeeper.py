"""The store on a ZooKeeper server."""

from __future__ import annotations

import pytest

from celery_dlock.backends.zookeeper import ZooKeeperBackend
from celery_dlock.testing import SharedStoreContract
from tests.services.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.server("zookeeper")


class TestZooKeeper(SharedStoreContract):
    backend_class = ZooKeeperBackend

    @pytest.fixture
    def url(self, zookeeper_server: ZooKeeperServer) -> str:
        return zookeeper_server.url
