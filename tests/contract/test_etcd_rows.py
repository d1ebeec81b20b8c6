"""Rows in etcd, as the contract of rows has them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from celery_dlock.stores.etcd.address import address_of
from celery_dlock.stores.etcd.store import EtcdRows
from tests.contract.rows_contract import RowsContract
from tests.services.etcd import EtcdServer

pytestmark = pytest.mark.server("etcd")


@pytest.fixture
def prefix() -> str:
    return f"dlock-{uuid.uuid4()}"


class TestEtcdRows(RowsContract):
    @pytest.fixture
    def rows(self, etcd_server: EtcdServer, prefix: str) -> Iterator[EtcdRows]:
        rows = EtcdRows(address_of(etcd_server.url, {}), prefix)
        yield rows
        rows.close()

    @pytest.fixture
    def others(self, etcd_server: EtcdServer, prefix: str) -> Iterator[EtcdRows]:
        others = EtcdRows(address_of(etcd_server.url, {}), prefix)
        yield others
        others.close()
