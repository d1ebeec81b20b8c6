"""What an operation costs on ZooKeeper: flights, requests, and what is in a multi-operation."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from celery_dlock.core.state import Outcome, Renewed
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.consensus import optimistic
from celery_dlock.stores.consensus.rows import ORDERED, Kind
from celery_dlock.stores.zookeeper.client import Send
from celery_dlock.stores.zookeeper.store import ZooKeeperBackend, ZooKeeperRows
from celery_dlock.testing.contract.words import ENQUEUE, QUEUE, claim, park, running
from tests.contract.operations import operations
from tests.contract.zookeeper_store import plain_client, session_of
from tests.services.unique import duplicate_call
from tests.services.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.server("zookeeper")

HOUR = 3600  # of lease


@dataclass
class Cost:
    flights: int = 0
    requests: Counter[str] = field(default_factory=Counter[str])
    #: What the multi-operations are made of.
    operations: Counter[str] = field(default_factory=Counter[str])


@pytest.fixture
def backend(
    zookeeper_server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ZooKeeperBackend]:
    """Its sweeps do not tidy, which they do at times of chance."""
    monkeypatch.setattr(optimistic, "TIDY_EVERY", 1e9)
    options = BackendOptions(prefix=f"cost-{uuid.uuid4().hex}", ttl=10.0)
    backend = ZooKeeperBackend.from_url(zookeeper_server.url, options)
    rows = backend._rows
    assert isinstance(rows, ZooKeeperRows)
    with rows._client.answers() as session:  # the first of all makes folders
        for kind in Kind:
            session.make_folder(f"{rows._layout.root}/{kind}")
            if kind not in ORDERED:
                session.flight(make(folder) for folder in rows._layout.folders(kind))
    running(backend.enter(claim("a", ttl=5)))
    backend.leave(claim("a"), Outcome.OVER)
    yield backend
    backend.close()


def make(folder: str) -> Send:
    return lambda kazoo: kazoo.create_async(folder)


@contextmanager
def counted(backend: ZooKeeperBackend) -> Iterator[Cost]:
    """Count what this process asks for; pings are none of it."""
    session, cost = session_of(backend._rows), Cost()  # type: ignore[arg-type]
    flight, call = session.flight, session.kazoo._call

    def flying(sends: Any) -> list[Any]:
        cost.flights += 1
        return flight(sends)

    def calling(request: Any, result: Any) -> Any:
        cost.requests[type(request).__name__] += 1
        for operation in getattr(request, "operations", ()):
            cost.operations[type(operation).__name__] += 1
        return call(request, result)

    session.flight, session.kazoo._call = flying, calling  # type: ignore[method-assign]
    try:
        yield cost
    finally:
        session.flight, session.kazoo._call = flight, call  # type: ignore[method-assign]


def test_an_uncontended_task_takes_two_commits_and_nothing_else(backend: ZooKeeperBackend) -> None:
    mine = claim("new", wait=QUEUE, ttl=5)

    with counted(backend) as entering:
        running(backend.enter(mine, b"message"))
    with counted(backend) as leaving:
        backend.leave(mine, Outcome.DONE)

    for cost in (entering, leaving):
        assert cost.flights == 1
        assert cost.requests == Counter(Transaction=1)
    # Version row, generation and holder; that it is not done already takes a node and its removal.
    assert entering.operations == Counter(Create=4, SetData=1, Delete=1)
    assert leaving.operations == Counter(Delete=3, Create=1)


def test_a_duplicate_call_of_a_unique_task_writes_nothing(backend: ZooKeeperBackend) -> None:
    call = duplicate_call(backend)
    with counted(backend) as first:
        call()
    with counted(backend) as more:
        call()

    # That what was read still stands is confirmed: a server may be behind the others.
    assert (first.flights, more.flights) == (3, 2)
    assert more.requests == Counter(GetData=1, Transaction=1)
    assert set(more.operations) == {"CheckVersion"}


def test_all_leases_of_a_process_are_renewed_in_one_flight(backend: ZooKeeperBackend) -> None:
    claims = [claim("a", key=f"key {n}", ttl=5) for n in range(100)]
    for mine in claims:
        running(backend.enter(mine))

    with counted(backend) as cost:
        assert all(isinstance(verdict, Renewed) for verdict in backend.renew(claims))

    assert cost.flights == 1
    assert cost.requests == Counter(Transaction=1, Exists=100)


def test_a_hundred_keys_are_looked_at_in_two_flights_at_most(backend: ZooKeeperBackend) -> None:
    # Nobody holds them: a lease that ends meanwhile is given up, and that is a flight, too.
    keys = [f"key {n}" for n in range(100)]
    for key in keys:
        backend.enter(claim("a", key=key, wait=ENQUEUE, ttl=5), b"message")

    with counted(backend) as cost:
        states = backend.look(keys)

    assert [turn.task for state in states for turn in state.grants] == ["a"] * 100
    assert cost.flights <= 2
    assert sum(cost.requests.values()) <= 100 + 2


#: Each, with forty that wait and with two hundred.
FLIGHTS = {
    "look": 2,
    "keys": 1,
    "parked": 1,
    "position": 2,
    "peek": 3,
    "dead": 2,
    "sweep": 1,
    "park": 3,
    "release": 4,
    "turn": 3,
    "note": 2,
    "notes": 4,
}


@pytest.mark.parametrize("waiting", [40, 200])  # a page is shorter than either
def test_what_an_operation_costs_however_many_wait(backend: ZooKeeperBackend, waiting: int) -> None:
    backend.note("key", 5, {"a": b"a"})
    costs = {}
    for name, operation in operations(backend, waiting, ttl=HOUR, noted="key").items():
        with counted(backend) as cost:
            operation()
        costs[name] = cost.flights
    assert costs == FLIGHTS


def test_a_key_that_was_waited_for_is_taken_in_one_commit_again(backend: ZooKeeperBackend) -> None:
    running(backend.enter(claim("holder", ttl=5)))
    with counted(backend) as first:  # it tries, in vain, whether the key is free
        park(backend, "next", ttl=5)
    with counted(backend) as second:
        park(backend, "last", ttl=5)
    for task in ("holder", "next", "last"):
        running(backend.enter(claim(task, wait=QUEUE, ttl=5)))
        backend.leave(claim(task), Outcome.OVER)
    with counted(backend) as free:
        running(backend.enter(claim("new", wait=QUEUE, ttl=5)))

    assert (first.flights, second.flights, free.flights) == (4, 3, 1)


def test_more_notes_than_a_request_takes_are_written_in_steps(backend: ZooKeeperBackend) -> None:
    notes = {f"name {n}": bytes(100_000) for n in range(15)}

    assert backend.note("key", 5, notes)

    assert backend.notes("key") == notes


def test_an_idle_key_leaves_nothing_but_that_its_task_is_done(
    backend: ZooKeeperBackend, zookeeper_server: ZooKeeperServer
) -> None:
    root = backend._rows._layout.root  # type: ignore[attr-defined]
    with plain_client(zookeeper_server.address) as client:
        before = nodes(client, root)
        for number in range(5):
            mine = claim("idle", key=f"idle {number}", wait=QUEUE, ttl=5)
            running(backend.enter(mine, b"message"))
            park(backend, "next", key=mine.key, ttl=5)
            backend.leave(mine, Outcome.OVER)
            running(backend.enter(claim("next", key=mine.key, wait=QUEUE, ttl=5)))
            backend.leave(claim("next", key=mine.key), Outcome.DONE)
        left = nodes(client, root) - before
    assert sorted(path.rpartition("/")[2] for path in left) == [
        f"idle%20{n},next" for n in range(5)
    ]
    assert all("/done/" in path for path in left)


def nodes(client: Any, path: str) -> set[str]:
    found = {path}
    for child in client.get_children(path):
        found |= nodes(client, f"{path}/{child}")
    return found
