"""What an operation costs on etcd: calls that the server has answered, by name."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator

import pytest

from celery_dlock.core.state import Outcome, Renewed
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.consensus import optimistic
from celery_dlock.stores.etcd.store import EtcdBackend
from celery_dlock.testing.contract.words import QUEUE, claim, running
from tests.contract.etcd_store import counted
from tests.contract.operations import operations
from tests.services.etcd import EtcdServer
from tests.services.unique import duplicate_call

pytestmark = pytest.mark.server("etcd")

HOUR = 3600  # of lease: nothing is prolonged meanwhile


@pytest.fixture
def backend(own_etcd_server: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[EtcdBackend]:
    """Connected, and with its leases. Its sweeps do not tidy, which they do at times of chance."""
    monkeypatch.setattr(optimistic, "TIDY_EVERY", 1e9)
    backend = EtcdBackend.from_url(own_etcd_server.url, BackendOptions(f"test-{uuid.uuid4()}"))
    running(backend.enter(claim("warm", key="warm", ttl=HOUR)))
    backend.leave(claim("warm", key="warm", ttl=HOUR), Outcome.DONE)
    yield backend
    backend.close()


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.OVER])
def test_an_uncontended_task_takes_one_transaction_in_and_one_out(
    backend: EtcdBackend, own_etcd_server: EtcdServer, outcome: Outcome
) -> None:
    with counted(own_etcd_server) as cost:
        for number in range(20):  # also where the key was used before
            mine = claim(f"task {number}", wait=QUEUE, ttl=HOUR)
            running(backend.enter(mine, b"message"))
            backend.leave(mine, outcome)

    assert cost == {"Txn": 2 * 20}


def test_a_duplicate_call_of_a_unique_task_writes_nothing(
    backend: EtcdBackend, own_etcd_server: EtcdServer
) -> None:
    call, costs = duplicate_call(backend), []
    for _ in range(2):
        with counted(own_etcd_server) as cost:
            call()
        costs.append(cost)

    assert costs == [{"Txn": 3}, {"Txn": 2}]


def test_a_hundred_leases_are_renewed(backend: EtcdBackend, own_etcd_server: EtcdServer) -> None:
    mine = [claim("a", key=f"key {number}", ttl=HOUR) for number in range(100)]
    for one in mine:
        running(backend.enter(one))

    with counted(own_etcd_server) as cost:
        assert all(isinstance(verdict, Renewed) for verdict in backend.renew(mine))
    assert cost["Txn"] == 1
    assert cost.total() <= 2  # the lease may have to be prolonged
    with counted(own_etcd_server) as cost:
        assert len(backend.keys(limit=60).keys) == 60
        assert backend.keys(waiting=True).keys == ()
    assert cost == {"Range": 2}
    with counted(own_etcd_server) as cost:
        assert all(state.holders for state in backend.look([one.key for one in mine]))
    assert cost == {"Txn": 2}


COSTS = {
    "park": {"Txn": 3},
    "release": {"Txn": 4},
    "turn": {"Txn": 3},
    "look": {"Txn": 2},
    "keys": {"Range": 1},
    "parked": {"Txn": 1},
    "position": {"Txn": 2},
    "peek": {"Txn": 3},
    "dead": {"Txn": 1, "Range": 1},
    "sweep": {"Range": 1},
    "note": {"Txn": 2},
    "notes": {"Txn": 4},
}


@pytest.mark.parametrize("waiting", [40, 400])
def test_what_an_operation_costs_however_many_wait(
    backend: EtcdBackend, own_etcd_server: EtcdServer, waiting: int
) -> None:
    costs: dict[str, Counter[str]] = {}
    for name, operation in operations(backend, waiting, ttl=HOUR, noted="key").items():
        with counted(own_etcd_server) as costs[name]:
            operation()
    assert costs == COSTS
