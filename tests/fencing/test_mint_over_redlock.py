"""A lock store that forgets has two holders and smaller tokens: a minted one keeps the order."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from celery_dlock import Lease, StaleFencingToken, fencing
from celery_dlock.core.lease import Term, unsleeping
from celery_dlock.core.state import Claim, Run
from celery_dlock.testing import ManualClock
from celery_dlock.testing.contract.words import claim, running
from tests.contract.redlock_store import gets_it, store_on_nodes, warm
from tests.services.redis_nodes import RedisNodes

pytestmark = pytest.mark.server("redis")


def lease(mine: Claim, run: Run) -> Lease:
    return Lease((Term(mine, run.slot, run.token, unsleeping()),), "best-effort")


@pytest.fixture
def two(own_redis_nodes: RedisNodes) -> tuple[Lease, Lease]:
    """Who holds a key of which every node has forgotten everything, and who got it after that.

    The clocks of the nodes have been set back meanwhile.
    """
    clock, a, b = ManualClock(), claim("a", ttl=60), claim("b", ttl=60)
    with store_on_nodes(own_redis_nodes, clock) as store:
        warm(store.backend)
        first = lease(a, running(store.backend.enter(a)))
        for node in range(len(store.nodes)):
            store.forget(node)
        clock.advance(-3600)
        second = lease(b, gets_it(store.another(), b))
    return first, second


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        fencing.create_table(connection)
        yield connection


def test_the_stores_own_tokens_let_a_late_write_pass_there(
    two: tuple[Lease, Lease], database: sqlite3.Connection
) -> None:
    first, second = two
    assert second.fencing_token < first.fencing_token
    assert not first.lost
    assert not second.lost

    for each in (second, first):
        database.execute("BEGIN")
        fencing.admit(database, each)
        database.execute("COMMIT")


def test_a_minted_token_refuses_it(two: tuple[Lease, Lease], database: sqlite3.Connection) -> None:
    def mint(lease: Lease) -> int:
        database.execute("BEGIN")
        token = fencing.mint(database, "stock", lease)
        database.execute("COMMIT")
        return token

    def admit(lease: Lease, token: int) -> None:
        fencing.admit(database, resource="stock", fencing_token=token, owner=lease.owner)

    first, second = two
    older, newer = mint(first), mint(second)
    database.execute("BEGIN")

    admit(second, newer)
    with pytest.raises(StaleFencingToken):
        admit(first, older)
