"""The store on etcd."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_dlock.stores.etcd.store import EtcdBackend
from tests.contract.suites import Notes, SharedStorage
from tests.services.etcd import EtcdServer

pytestmark = pytest.mark.server("etcd")


@pytest.fixture(scope="module")
def guarded_server() -> Iterator[EtcdServer]:
    with EtcdServer() as server:
        server.lets_in("secret", "contract-")
        yield server


class TestEtcd(SharedStorage, Notes):
    backend_class = EtcdBackend

    @pytest.fixture
    def url(self, guarded_server: EtcdServer) -> str:
        """As a user of the role that the page of the store describes, and no more."""
        return guarded_server.url.replace("://", "://worker:secret@")
