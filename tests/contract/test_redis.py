"""The store on a Redis server."""

from __future__ import annotations

from contextlib import closing

import pytest

from celery_dlock.core.state import Busy
from celery_dlock.registry import open_backend
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.redis.store import RedisBackend
from celery_dlock.testing.contract.words import claim, running
from tests.contract.redis_store import let_in
from tests.contract.suites import Notes, Rules, SharedStorage
from tests.services.redis import RedisServer

pytestmark = pytest.mark.server("redis")


def test_the_scheme_of_valkey_leads_to_the_same_locks(redis_server: RedisServer) -> None:
    """Over Redis: no package of Valkey can be counted on."""
    options = BackendOptions(prefix="valkey")
    other = redis_server.url.replace("redis://", "valkey://")
    with (
        closing(RedisBackend.from_url(redis_server.url, options)) as one,
        closing(open_backend(other, options)) as two,
    ):
        running(one.enter(claim("a")))
        assert isinstance(two.enter(claim("b")).verdict, Busy)


class TestRedis(Rules, SharedStorage, Notes):
    backend_class = RedisBackend

    @pytest.fixture
    def url(self, redis_server: RedisServer) -> str:
        """As a user who may do what the page of the store says, and nothing else."""
        let_in(redis_server, "~contract-*")
        return redis_server.url.replace("://", "://locks:secret@")
