"""The store on a Redis server."""

from __future__ import annotations

import pytest

from celery_dlock.backends.redis import RedisBackend
from celery_dlock.testing import SharedStoreContract
from tests.services.redis import RedisServer

pytestmark = pytest.mark.server("redis")


class TestRedis(SharedStoreContract):
    backend_class = RedisBackend

    @pytest.fixture
    def url(self, redis_server: RedisServer) -> str:
        return redis_server.url
