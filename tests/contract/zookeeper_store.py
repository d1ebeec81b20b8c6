"""Rows on a real server, beside a plain client that looks in and interferes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kazoo.client import KazooClient

from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.consensus.rows import Commit, Kind, Name
from celery_dlock.stores.zookeeper.client import Session, address_of
from celery_dlock.stores.zookeeper.store import ZooKeeperRows

SECOND = 1_000_000
HELD = Name(Kind.HOLDER, "key", "task|1")


def open_rows(url: str, ttl: float = 5.0, prefix: str = "", **driver: Any) -> ZooKeeperRows:
    """Rows below a prefix of their own, unless one is given."""
    prefix = prefix or f"test-{uuid.uuid4().hex}"
    options = BackendOptions(prefix=prefix, ttl=ttl, driver=driver)
    return ZooKeeperRows(address_of(url, options), options)


@contextmanager
def rows_at(url: str, ttl: float = 5.0, prefix: str = "", **driver: Any) -> Iterator[ZooKeeperRows]:
    rows = open_rows(url, ttl, prefix, **driver)
    try:
        yield rows
    finally:
        rows.close()


@contextmanager
def plain_client(address: str, **options: Any) -> Iterator[KazooClient]:
    client = KazooClient(address, **options)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def session_of(rows: ZooKeeperRows) -> Session:
    session = rows._client.session()
    assert session is not None
    return session


def expire(rows: ZooKeeperRows, address: str) -> None:
    """End the session of *rows* on the server: whoever shows its password may close it."""
    kazoo = session_of(rows).kazoo
    with plain_client(address, client_id=kazoo.client_id):
        pass


def hold(rows: ZooKeeperRows, name: Name = HELD) -> None:
    """Take a key as an operation does, whatever its version row is."""
    version_row = Name(Kind.VERSION_ROW, name.key)
    (row,) = rows.read([version_row])
    assert (
        rows.commit(
            Commit(version_row, row, b"version row", held=(name, b""), lease=rows.lease_of(0))
        )
        is not None
    )
