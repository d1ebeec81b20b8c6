"""The store on etcd."""

from __future__ import annotations

import pytest

from celery_dlock.backends.etcd import EtcdBackend
from celery_dlock.testing import SharedStoreContract
from tests.services.etcd import EtcdServer

pytestmark = pytest.mark.server("etcd")


class TestEtcd(SharedStoreContract):
    backend_class = EtcdBackend

    @pytest.fixture
    def url(self, etcd_server: EtcdServer) -> str:
        return etcd_server.url
