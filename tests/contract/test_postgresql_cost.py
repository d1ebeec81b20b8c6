"""What an operation costs on PostgreSQL: flights, as they are sent and as they cross the wire."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

import psycopg
import pytest

from celery_dlock.core.operations import Discard, PutOnHold, Reap, Replay
from celery_dlock.core.state import Cause, Claim, Outcome, Renewed
from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.postgresql.connection import Connection, Rows, Statement
from celery_dlock.stores.postgresql.store import PostgresqlBackend
from celery_dlock.testing.contract.words import PLACE, QUEUE, claim, park, running, woken
from tests.contract.postgresql_store import counted
from tests.services.pgbouncer import PgBouncer
from tests.services.postgresql import PostgresqlServer
from tests.services.proxy import Proxy, proxy_to
from tests.services.unique import duplicate_call

pytestmark = [pytest.mark.server("postgresql"), pytest.mark.once]

#: What anything takes at most but a free key that is taken or released.
MOST = 3

HOUR = 3600.0  # of lease or hold: nothing is over while it is counted, on a slow host too


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
        proxy.ends = b"S\0\0\0\4"  # Sync
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


def test_a_duplicate_call_of_a_unique_task_writes_nothing_in_one_flight(
    backend: PostgresqlBackend, cost: Cost, postgresql_server: PostgresqlServer
) -> None:
    call = duplicate_call(backend)
    rows = f"SELECT xmin, ctid FROM dlock.swap WHERE prefix = '{backend._prefix}'"
    before = postgresql_server.query(rows)

    assert (cost(call), cost(call)) == (1, 1)
    assert postgresql_server.query(rows) == before


def test_everything_else_takes_at_most_three_flights(
    backend: PostgresqlBackend, cost: Cost
) -> None:
    holder, first = claim("holder", ttl=HOUR), claim("task 0", wait=QUEUE, ttl=HOUR)
    running(backend.enter(holder))
    operations: dict[str, Callable[[], object]] = {
        "parking, by a process that takes the key for free": lambda: park(backend, "task 0"),
        "parking": lambda: park(backend, "task 1"),
        "sweep": backend.sweep,  # before a turn is woken, which it looks after some seconds later
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
        "replay": lambda: backend.apply(Replay("key", "task 1")),
        "discard": lambda: backend.apply(Discard("key", "task 1", 0)),
        "hold": lambda: backend.apply(PutOnHold("key", "", "1", "ann", "why", 3_600_000_000)),
        "abandoned": lambda: backend.leave(first, Outcome.ABANDONED),
        "swap": lambda: backend.swap("name", None, b"text", 1_000_000),
        "swapped": backend.swapped,
        "note": lambda: backend.note("key", 1, {f"name {n}": b"text" for n in range(50)}),
        "notes": lambda: backend.notes("key"),
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


def test_a_sweep_writes_to_tidy_up_and_to_reap_and_else_reads(
    backend: PostgresqlBackend, postgresql_server: PostgresqlServer
) -> None:
    running(backend.enter(claim("holder")))
    park(backend, "task 0")
    postgresql_server.query(f"UPDATE dlock.state SET due = 1 WHERE prefix = '{backend._prefix}'")

    with counted() as flights:
        backend.sweep()

    writes = [b"READ WRITE" in flight[0].text for flight in flights.sent]
    assert writes == [True, False, True, False]


def test_a_holders_row_that_is_in_use_is_one_flight_more_for_who_had_hoped_for_a_free_key(
    backend: PostgresqlBackend, cost: Cost, postgresql_server: PostgresqlServer
) -> None:
    over, released = claim("over", key="over", ttl=1e-6), claim("released", key="released")
    for mine in (over, released):
        running(backend.enter(mine))
    with psycopg.connect(postgresql_server.url) as writes:
        writes.execute("SELECT FROM dlock.holder FOR KEY SHARE")
        operations: dict[str, Callable[[], object]] = {
            "parking, by a process that takes the key for free": lambda: park(
                backend, "task 0", key="over"
            ),
            "parking": lambda: park(backend, "task 1", key="over"),
            "refusal": lambda: backend.enter(claim("other", key="over")),
            "reaping": lambda: backend.apply(Reap("over")),
            "release": partial(refused, backend, released),
        }
        costs = {name: cost(operation) for name, operation in operations.items()}

    assert costs.pop("parking, by a process that takes the key for free") == MOST + 1
    assert max(costs.values()) == costs["parking"] == costs["release"] == MOST, costs


def refused(backend: PostgresqlBackend, claim: Claim) -> None:
    with pytest.raises(BackendUnavailable, match="still open"):
        backend.leave(claim, Outcome.DONE)


def fill(server: PostgresqlServer, prefix: str, key: str, waiting: int) -> None:
    """Put tasks into the queue, past the store's own slower way.

    Every other one is a place. As many are done, and as many keys are due much later.
    """
    of_each = f"'{prefix}', '{key}', 'task ' || n"
    numbers = f"FROM generate_series(0, {waiting - 1}) AS n"
    server.query(
        f"""INSERT INTO dlock.waiting
            (prefix, key, task, mode, rank, arrived, ordered, name, entry, keyset, due, expires)
        SELECT {of_each}, 'exclusive', n, 0, false, '', 0, '', 0,
            CASE n % 2 WHEN 1 THEN {2**62} END {numbers};
        INSERT INTO dlock.message SELECT {of_each}, 'message' {numbers};
        INSERT INTO dlock.past SELECT {of_each}, 1, 0, {2**62} {numbers};
        INSERT INTO dlock.state (prefix, key, grants, cooling, parked, paused)
        VALUES ('{prefix}', '{key}', '[]', '[]', {waiting}, 0);
        INSERT INTO dlock.state (prefix, key, grants, cooling, parked, paused, due)
        SELECT '{prefix}', 'other ' || n || ' {key}', '[]', '[]', 0, 0, {2**62} {numbers}"""
    )


@dataclass
class Explained:
    """How many blocks of tables and indices are looked at, and which tables are read as a whole."""

    blocks: int = 0
    scanned: set[str] = field(default_factory=set[str])

    def add(self, plan: dict[str, Any]) -> None:
        self.blocks += int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


#: How often each table was read as a whole since the connection last told the server.
_SCANS = Statement(
    b"SELECT relname, seq_scan FROM pg_stat_xact_user_tables WHERE schemaname = 'dlock'"
)


@contextmanager
def explained() -> Iterator[Explained]:
    """What ``EXPLAIN (ANALYZE, BUFFERS)`` says of the statements of the flights meanwhile.

    Each flight is made twice for that, and rolled back: the first time functions are planned, for
    which the server reads its catalogues. What functions look at is counted in what calls them.
    """
    seen, fly = Explained(), Connection.fly

    def explaining(self: Connection, statements: Sequence[Statement]) -> list[Rows]:
        begin = [Statement(b"BEGIN")] if len(statements) == 1 else statements[:2]
        asked = statements if len(statements) == 1 else statements[2:-1]
        explain = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "
        plans = [Statement(explain + each.text, each.values) for each in asked]
        for _ in range(2):
            answers = fly(self, [*begin, _SCANS, *plans, _SCANS, Statement(b"ROLLBACK")])
        (before, _), *explanations, (after, _) = answers[len(begin) : -1]
        for ((text,),), _ in explanations:
            (explanation,) = json.loads(text)
            assert "JIT" not in explanation  # to compile is dearer
            seen.add(explanation["Plan"])
        seen.scanned |= {table for table, _ in set(after) - set(before)}
        return fly(self, statements)

    with mock.patch.object(Connection, "fly", explaining):
        yield seen


@pytest.mark.parametrize("analyzed", [False, True], ids=["before its statistics", "with them"])
def test_what_is_read_is_the_same_with_ten_waiting_and_with_a_hundred_thousand(
    analyzed: bool, own_postgresql_server: PostgresqlServer
) -> None:
    # Statistics of another time, when each of many keys had a few, may lead the planner to another
    # index until the server renews them; here nobody does.
    server = own_postgresql_server
    for statement in ("ALTER SYSTEM SET autovacuum = off", "SELECT pg_reload_conf()"):
        server.query(statement)
    costs: dict[int, dict[str, int]] = {}
    for waiting in (10, 100_000):
        # Each has a prefix of its own: a sweep looks after turns that were woken seconds before.
        options, key, costs[waiting] = BackendOptions(prefix=f"cost-{waiting}"), "key", {}
        with closing(PostgresqlBackend.from_url(server.url, options)) as backend:
            running(backend.enter(claim("holder", key=key, ttl=HOUR)))
            fill(server, options.prefix, key, waiting)
            if analyzed:
                server.query("ANALYZE dlock.waiting, dlock.state, dlock.past")
            for name, operation in operations(backend, key, waiting).items():
                with explained() as seen:
                    operation()
                costs[waiting][name] = seen.blocks
                assert not seen.scanned & FILLED, name

    assert max(costs[100_000].values()) < 150, costs
    few, many = (sum(costs[waiting].values()) for waiting in costs)
    assert many < 3 * few, costs


#: The tables with as many rows.
FILLED = {"waiting", "message", "past", "state"}


def operations(
    backend: PostgresqlBackend, key: str, waiting: int
) -> dict[str, Callable[[], object]]:
    """What is asked of a key with a holder, in this order."""
    last = f"task {waiting - 1}"
    return {
        "refusal": partial(backend.enter, claim("other", key=key)),
        "parking": partial(backend.enter, claim("new", key=key, wait=QUEUE), b"new"),
        "renewal": partial(backend.renew, [claim("holder", key=key, ttl=HOUR)]),
        "first of the queue": partial(backend.peek, key, 10),
        "position": partial(backend.position, key, last),
        "parked": partial(backend.parked, [last]),
        "look": partial(backend.look, [key]),
        "keys": partial(backend.keys, waiting=True),
        "revocation": partial(backend.cancel, key, last),
        "release": partial(backend.leave, claim("holder", key=key), Outcome.DONE),
        "turn": partial(backend.enter, claim("task 0", key=key, wait=QUEUE), b"message"),
        "sweep": backend.sweep,
    }
