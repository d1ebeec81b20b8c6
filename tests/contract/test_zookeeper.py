"""The store on a ZooKeeper server."""

from __future__ import annotations

import pytest

from celery_dlock.stores.zookeeper.store import ZooKeeperBackend
from tests.contract.suites import Notes, SharedStorage
from tests.services.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.server("zookeeper")


class TestZooKeeper(SharedStorage, Notes):
    backend_class = ZooKeeperBackend

    @pytest.fixture
    def url(self, zookeeper_server: ZooKeeperServer) -> str:
        """As a user to whom alone all that it makes is open."""
        return zookeeper_server.url.replace("://", "://locks:secret@")
