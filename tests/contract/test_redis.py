"""The store on a Redis server."""

from __future__ import annotations

import pytest

from celery_dlock.stores.redis.store import RedisBackend
from celery_dlock.testing import NoteStoreContract, SharedStoreContract
from tests.contract.redis_store import let_in
from tests.services.redis import RedisServer

pytestmark = pytest.mark.server("redis")


class TestRedis(SharedStoreContract, NoteStoreContract):
    backend_class = RedisBackend

    @pytest.fixture
    def url(self, redis_server: RedisServer) -> str:
        """As a user who may do what the page of the store says, and nothing else."""
        let_in(redis_server, "~contract-*")
        return redis_server.url.replace("://", "://locks:secret@")
