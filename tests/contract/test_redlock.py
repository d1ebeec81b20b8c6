"""The store on three independent Redis servers."""

from __future__ import annotations

import pytest

from celery_dlock.stores.redlock.store import RedlockBackend
from tests.contract.storage.one_of_each import Promised
from tests.contract.suites import Notes, SharedStorage, Taking
from tests.services.redis_nodes import RedisNodes, redlock_url

pytestmark = pytest.mark.server("redis")


class TestRedlock(Promised, Taking, SharedStorage, Notes):
    backend_class = RedlockBackend

    @pytest.fixture
    def url(self, redis_nodes: RedisNodes) -> str:
        return redlock_url([node.port for node in redis_nodes[:3]])
