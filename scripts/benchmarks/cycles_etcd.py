"""etcd: against two bare transactions, the least that takes a key and gives it back."""

from __future__ import annotations

import importlib
import uuid
from contextlib import closing
from typing import Any

from celery_dlock.stores.etcd.protobuf import import_etcdrpc
from scripts.benchmarks.cycles import Cycle, compare, ours, store
from scripts.benchmarks.measure import Measured
from tests.services.etcd import EtcdServer

rpc: Any = import_etcdrpc()
etcd3: Any = importlib.import_module("etcd3")


def transactions(client: Any) -> Cycle:
    """A version row and a holder put on condition that there is none; both deleted again."""
    stub = rpc.KVStub(client.channel)

    def put(key: bytes) -> Any:
        return rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=b"", lease=lease.id))

    def delete(key: bytes) -> Any:
        return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key))

    def when(created: int) -> Any:
        return rpc.Compare(
            key=b"floor", target=rpc.Compare.CREATE, result=created, create_revision=0
        )

    lease = client.lease(600)  # for longer than it is measured

    def cycle() -> None:
        holder = uuid.uuid4().hex.encode()
        took = rpc.TxnRequest(
            compare=[when(rpc.Compare.EQUAL)], success=[put(b"floor"), put(holder)]
        )
        gave = rpc.TxnRequest(
            compare=[when(rpc.Compare.GREATER)], success=[delete(b"floor"), delete(holder)]
        )
        for request in (took, gave):
            assert stub.Txn(request).succeeded

    return cycle


def etcd3_transactions(client: Any) -> Cycle:
    version, put, delete = (getattr(client.transactions, n) for n in ("version", "put", "delete"))

    def cycle() -> None:
        for compare_, change in (
            (version("own") == 0, put("own", "me")),
            (version("own") > 0, delete("own")),
        ):
            done, _ = client.transaction(compare=[compare_], success=[change], failure=[])
            assert done

    return cycle


def etcd3_lock(client: Any) -> Cycle:
    def cycle() -> None:
        lock = client.lock("etcd3", ttl=30)
        assert lock.acquire(timeout=1)
        assert lock.release()

    return cycle


def etcd_cycles(server: EtcdServer, times: int = 50, rounds: int = 40) -> list[Measured]:
    """The first is the floor. Short rounds: what else the machine does falls on all alike."""
    host, _, port = server.address.partition(":")
    with etcd3.client(host, int(port)) as client, closing(store(server.url)) as backend:
        contestants = {
            "a bare transaction in, a bare one out": transactions(client),
            "celery_dlock": ours(backend),
            "etcd3 transactions of one row": etcd3_transactions(client),
            "etcd3.Lock": etcd3_lock(client),
        }
        return compare(contestants, times, rounds)
