"""What an operation costs on etcd: calls that the server has answered, by name."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from celery_dlock.core.state import WINDOW, Outcome, Park, Renewed
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.etcd.store import EtcdBackend
from celery_dlock.testing.contract.words import QUEUE, claim, park, running, woken
from tests.contract.etcd_store import counted
from tests.services.etcd import EtcdServer

pytestmark = pytest.mark.server("etcd")

HOUR = 3600  # of lease: nothing is prolonged meanwhile


@pytest.fixture
def backend(own_etcd_server: EtcdServer) -> Iterator[EtcdBackend]:
    """Connected, and with its leases."""
    backend = EtcdBackend.from_url(own_etcd_server.url, BackendOptions(f"test-{uuid.uuid4()}"))
    running(backend.enter(claim("warm", key="warm", ttl=HOUR)))
    backend.leave(claim("warm", key="warm", ttl=HOUR), Outcome.DONE)
    yield backend
    backend.close()


def test_an_uncontended_task_takes_one_transaction_in_and_one_out(
    backend: EtcdBackend, own_etcd_server: EtcdServer
) -> None:
    with counted(own_etcd_server) as cost:
        for number in range(20):
            mine = claim("a", key=f"key {number}", wait=QUEUE, ttl=HOUR)
            running(backend.enter(mine, b"message"))
            backend.leave(mine, Outcome.DONE)

    assert cost == {"Txn": 2 * 20}


def test_a_key_that_was_used_before_costs_no_more(
    backend: EtcdBackend, own_etcd_server: EtcdServer
) -> None:
    with counted(own_etcd_server) as cost:
        for number in range(20):
            mine = claim(f"task {number}", ttl=HOUR)
            running(backend.enter(mine))
            backend.leave(mine, Outcome.OVER)

    assert cost == {"Txn": 2 * 20}


def test_all_leases_of_a_worker_are_renewed_in_one_call_and_prolonged_in_another(
    backend: EtcdBackend, own_etcd_server: EtcdServer
) -> None:
    mine = [claim("a", key=f"key {number}", ttl=HOUR) for number in range(100)]
    for one in mine:
        running(backend.enter(one))

    with counted(own_etcd_server) as cost:
        assert all(isinstance(verdict, Renewed) for verdict in backend.renew(mine))

    assert cost["Txn"] == 1
    assert cost.total() <= 2


def test_what_contention_costs_at_most(backend: EtcdBackend, own_etcd_server: EtcdServer) -> None:
    first, second = claim("a", ttl=HOUR), claim("b", wait=QUEUE, ttl=HOUR)
    operations: list[tuple[int, Callable[[], object]]] = [
        (1, lambda: running(backend.enter(first))),
        (4, lambda: backend.enter(second, b"message")),
        (4, lambda: woken(backend.leave(first, Outcome.DONE))),
        (3, lambda: running(backend.enter(second, b"message"))),
        (3, lambda: backend.leave(second, Outcome.DONE)),
    ]
    for at_most, operation in operations:
        with counted(own_etcd_server) as cost:
            operation()
        assert cost["Txn"] == cost.total() <= at_most


def test_an_operation_costs_the_same_with_ten_waiting_and_with_a_thousand(
    backend: EtcdBackend, own_etcd_server: EtcdServer
) -> None:
    costs = []
    waiting = 0
    running(backend.enter(claim("holder", ttl=HOUR)))
    for more in (10, 990):
        for _ in range(more):
            park(backend, f"w{waiting}")
            waiting += 1
        with counted(own_etcd_server) as cost:
            assert backend.enter(claim("new", wait=QUEUE), b"message").verdict == Park()
            backend.leave(claim("new", wait=QUEUE), Outcome.OVER)
        costs.append(cost)

    assert costs[1].total() <= costs[0].total() + 2


def test_a_note_takes_two_calls_and_reading_all_of_them_four(
    backend: EtcdBackend, own_etcd_server: EtcdServer
) -> None:
    backend.note("key", 5, {"a": b"a"})

    with counted(own_etcd_server) as cost:
        assert backend.note("key", 6, {"a": b"b", "b": b"b"})
    assert cost == {"Txn": 2}
    with counted(own_etcd_server) as cost:
        assert backend.notes("key") == {"a": b"b", "b": b"b"}
    assert cost == {"Txn": 4}


def test_a_page_is_one_call_and_a_hundred_keys_are_looked_at_in_two_flights(
    backend: EtcdBackend, own_etcd_server: EtcdServer
) -> None:
    keys = [f"key {n}" for n in range(100)]
    for key in keys:
        running(backend.enter(claim("a", key=key, ttl=HOUR)))

    with counted(own_etcd_server) as cost:
        assert len(backend.keys(limit=60).keys) == 60
        assert backend.keys(waiting=True).keys == ()
    assert cost == {"Range": 2}
    with counted(own_etcd_server) as cost:
        assert all(state.holders for state in backend.look(keys))
    assert cost == {"Txn": 2}


def test_a_look_costs_the_same_with_forty_waiting_and_with_four_hundred(
    backend: EtcdBackend, own_etcd_server: EtcdServer
) -> None:
    running(backend.enter(claim("holder", ttl=HOUR)))
    for start, end in ((0, 40), (40, 400)):
        park(backend, *(f"w{n}" for n in range(start, end)))

        with counted(own_etcd_server) as cost:
            (state,) = backend.look(["key"])
            assert backend.keys(waiting=True).keys == ("key",)

        assert (len(state.waiting), state.parked) == (WINDOW, end)
        assert cost == {"Txn": 2, "Range": 1}


def test_what_people_ask_costs_the_same_however_many_wait(
    backend: EtcdBackend, own_etcd_server: EtcdServer
) -> None:
    running(backend.enter(claim("holder", ttl=HOUR)))
    costs = []
    for start, end in ((0, 40), (40, 400)):
        park(backend, *(f"w{n}:0:0" for n in range(start, end)))

        with counted(own_etcd_server) as cost:
            assert backend.parked([f"w{end - 1}", "unknown"]) == [("key", f"w{end - 1}:0:0")]
            assert backend.position("key", f"w{end - 1}:0:0") is not None
            assert len(backend.peek("key", 10).waiting) == 10
            assert backend.dead(10) == backend.dead_of(["unknown"]) == []
        costs.append(cost)

    assert costs[0] == costs[1]


def test_a_sweep_of_nothing_is_one_call(backend: EtcdBackend, own_etcd_server: EtcdServer) -> None:
    with counted(own_etcd_server) as cost:
        assert backend.sweep().wakes == ()

    assert cost == {"Range": 1}
