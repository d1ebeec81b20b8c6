"""Rows on a real etcd, and a look at what their operations cost there."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery_dlock.stores.etcd.address import address_of
from celery_dlock.stores.etcd.store import EtcdRows
from tests.services.etcd import EtcdServer


@contextmanager
def rows_at(url: str, prefix: str | None = None, **driver: Any) -> Iterator[EtcdRows]:
    """Rows of a prefix of their own."""
    rows = EtcdRows(address_of(url, driver), prefix or f"test-{uuid.uuid4()}")
    try:
        yield rows
    finally:
        rows.close()


@contextmanager
def counted(server: EtcdServer) -> Iterator[Counter[str]]:
    """Count the calls that a server answers, by name; nobody else may use it meanwhile."""
    cost: Counter[str] = Counter()
    before = server.handled()
    yield cost
    cost.update(server.handled() - before)
