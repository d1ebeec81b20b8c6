"""What an operation costs on PostgreSQL: flights, as they are sent and as they cross the wire."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from celery_dlock.core.operations import Reap
from celery_dlock.core.state import Cause, Outcome, Renewed
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.postgresql.store import PostgresqlBackend
from celery_dlock.testing.contract.words import PLACE, QUEUE, claim, park, running, woken
from tests.contract.postgresql_store import counted
from tests.services.pgbouncer import PgBouncer
from tests.services.postgresql import PostgresqlServer
from tests.services.proxy import Proxy, proxy_to

pytestmark = [pytest.mark.server("postgresql"), pytest.mark.once]

#: What anything takes at most but a free key that is taken or released.
MOST = 3


@pytest.fixture(
    params=["postgresql_server", pytest.param("pgbouncer", marks=pytest.mark.server("pgbouncer"))]
)
def server(request: pytest.FixtureRequest) -> PostgresqlServer | PgBouncer:
    """What a client speaks to: the server, or a pooler before it."""
    found: PostgresqlServer | PgBouncer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def proxy(server: PostgresqlServer | PgBouncer) -> Iterator[Proxy]:
    with proxy_to(server.port) as proxy:
        yield proxy


@pytest.fixture
def backend(server: PostgresqlServer | PgBouncer, proxy: Proxy) -> Iterator[PostgresqlBackend]:
    url = server.url.replace(str(server.port), str(proxy.port))
    options = BackendOptions(prefix=f"cost-{uuid.uuid4().hex}")
    with closing(PostgresqlBackend.from_url(url, options)) as backend:
        backend.now()
        yield backend


@pytest.fixture
def cost(proxy: Proxy) -> Callable[[Callable[[], object]], int]:
    """The flights of an operation, which are as many round trips."""

    def cost(operation: Callable[[], object]) -> int:
        turns = proxy.turns
        with counted() as flights:
            operation()
        assert proxy.turns - turns == len(flights)
        return len(flights)

    return cost


Cost = Callable[[Callable[[], object]], int]


def test_a_free_key_is_taken_in_one_flight_and_released_in_one(
    backend: PostgresqlBackend, cost: Cost
) -> None:
    for wait in (QUEUE, PLACE):
        mine = claim(f"task {wait}", wait=wait, limit=3)
        assert cost(partial(backend.enter, mine, b"message")) == 1
        assert [holder.task for holder in backend.peek("key").holders] == [mine.task]
        assert cost(partial(backend.leave, mine, Outcome.DONE)) == 1


def test_a_key_that_was_used_is_free_again_for_one_flight(
    backend: PostgresqlBackend, cost: Cost
) -> None:
    running(backend.enter(claim("a")))
    park(backend, "b")
    backend.leave(claim("a"), Outcome.DONE)
    running(backend.enter(claim("b", wait=QUEUE), b"message"))

    assert cost(lambda: backend.leave(claim("b", wait=QUEUE), Outcome.DONE)) == 1
    assert cost(lambda: backend.enter(claim("c"))) == 1


def test_all_leases_of_a_process_are_renewed_in_one_flight(
    backend: PostgresqlBackend, cost: Cost
) -> None:
    claims = [claim("a", key=f"key {n}") for n in range(100)]
    for mine in claims:
        running(backend.enter(mine))
    verdicts: list[Any] = []

    assert cost(lambda: verdicts.extend(backend.renew(claims))) == 1
    assert all(isinstance(verdict, Renewed) for verdict in verdicts)


def test_everything_else_takes_at_most_three_flights(
    backend: PostgresqlBackend, cost: Cost
) -> None:
    holder, first = claim("holder"), claim("task 0", wait=QUEUE)
    running(backend.enter(holder))
    operations: dict[str, Callable[[], object]] = {
        "parking, by a process that takes the key for free": lambda: park(backend, "task 0"),
        "parking": lambda: park(backend, "task 1"),
        "refusal": lambda: backend.enter(claim("other")),
        "place": lambda: backend.enter(claim("place", wait=PLACE)),
        "copy": lambda: backend.enter(claim("task 1", "copy", wait=QUEUE), b"copy"),
        "stranger": lambda: backend.leave(claim("stranger"), Outcome.OVER),
        "release": lambda: woken(backend.leave(holder, Outcome.DONE)),
        "turn": lambda: running(backend.enter(first, b"message")),
        "renewal": lambda: backend.renew([first]),
        "debounced call": lambda: backend.postpone(claim("late"), b"message", 1, 2),
        "reaping": lambda: backend.apply(Reap("key")),
        "revocation": lambda: backend.cancel("key", "task 1"),
        "dead letter": lambda: backend.dead_letter("key", "task 1", Cause.UNREADABLE),
        "replay": lambda: backend.replay("key", "task 1"),
        "discard": lambda: backend.discard("key", "task 1", 0),
        "hold": lambda: backend.put_on_hold("key", "", "1", "ann", "why", 1_000_000),
        "abandoned": lambda: backend.leave(first, Outcome.ABANDONED),
        "swap": lambda: backend.swap("name", None, b"text", 1_000_000),
        "swapped": backend.swapped,
        "note": lambda: backend.note("key", 1, {f"name {n}": b"text" for n in range(50)}),
        "notes": lambda: backend.notes("key"),
        "sweep": backend.sweep,
        "page": backend.keys,
        "page of keys with messages": lambda: backend.keys(waiting=True),
        "look": lambda: backend.look([f"key {n}" for n in range(100)]),
        "peek": lambda: backend.peek("key"),
        "position": lambda: backend.position("key", "place"),
        "message": lambda: backend.message("key", "task 1"),
        "parked": lambda: backend.parked([f"task {n}" for n in range(100)]),
        "dead of": lambda: backend.dead_of([f"task {n}" for n in range(100)]),
        "dead": backend.dead,
        "count": backend.count_dead,
        "time": backend.now,
    }

    costs = {name: cost(operation) for name, operation in operations.items()}

    assert max(costs.values()) <= MOST, costs
    assert costs["parking"] == costs["release"] == costs["turn"] == 2
