"""The store on three, and on five, independent Redis servers."""

from __future__ import annotations

import pytest

from celery_dlock.stores.redlock.store import RedlockBackend
from celery_dlock.testing import NoteStoreContract, SharedStoreContract
from tests.contract.suites import Notes, OneOfEach, Rules, SharedStorage
from tests.services.redis_nodes import RedisNodes, redlock_url

pytestmark = pytest.mark.server("redis")


class TestRedlock(Rules, SharedStorage, Notes):
    backend_class = RedlockBackend

    @pytest.fixture
    def url(self, redis_nodes: RedisNodes) -> str:
        return redlock_url([node.port for node in redis_nodes[:3]])


@pytest.mark.slow
class TestRedlockOfFive(OneOfEach, SharedStoreContract, NoteStoreContract):
    backend_class = RedlockBackend

    @pytest.fixture
    def url(self, redis_nodes: RedisNodes) -> str:
        return redis_nodes.url
