"""Many write at once: the row lock puts them in an order, at every isolation level."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy.exc import DBAPIError

from celery_dlock import StaleFencingToken, fencing
from tests.fencing.clients import Client, open_client, over
from tests.fencing.conftest import Database
from tests.fencing.faces import faces
from tests.fencing.leases import lease, term

WRITERS, ROUNDS, MINTS = 16, 3, 4

LEVELS = [
    pytest.param(
        *(server, driver, level),
        id=f"{server}-{driver}-{level}",
        marks=pytest.mark.server(server),
    )
    for server, driver, level in [
        ("postgresql", "postgresql+psycopg", "READ COMMITTED"),
        ("postgresql", "postgresql+psycopg", "REPEATABLE READ"),
        ("postgresql", "postgresql+psycopg", "SERIALIZABLE"),
        ("postgresql", "postgresql+psycopg2", "SERIALIZABLE"),
        ("mariadb", "mysql+pymysql", "READ COMMITTED"),
        ("mariadb", "mysql+pymysql", "REPEATABLE READ"),
    ]
]

pytestmark = pytest.mark.once


@pytest.mark.parametrize(("server", "driver", "level"), LEVELS)
def test_what_is_committed_is_in_the_order_of_the_tokens(
    server: str, driver: str, level: str, database: Database, name: str
) -> None:
    url, log = over(driver, database(server)), f"log_{uuid.uuid4().hex}"
    with open_client("connection", url) as client:
        client.execute(f"CREATE TABLE {log} (number SERIAL PRIMARY KEY, token INTEGER)")
        client.commit()

    def write(client: Client, token: int) -> None:
        client.admit(name, token, f"owner {token}")
        client.execute(f"INSERT INTO {log} (token) VALUES ({token})")
        client.commit()

    def writer(number: int, together: threading.Barrier) -> None:
        with open_client("connection", url) as client:
            client.fenced.execution_options(isolation_level=level)
            for orders_of_round in orders:
                client.execute(f"SELECT COUNT(*) FROM {log}")  # from here on a snapshot is old
                together.wait()
                _until_it_is_said(client, orders_of_round[number], write)

    shuffled = random.Random(42)
    orders = [
        shuffled.sample(range(first, first + WRITERS), WRITERS)
        for first in range(1, ROUNDS * WRITERS, WRITERS)
    ]
    _all_at_once(writer)

    with open_client("connection", url) as client:
        written = [token for (token,) in client.execute(f"SELECT token FROM {log} ORDER BY number")]
    assert written == sorted(set(written))
    assert {max(order) for order in orders} <= set(written)


def _until_it_is_said(client: Client, token: int, write: Callable[[Client, int], None]) -> None:
    """Written, or refused; what the database could not put in an order is tried again."""
    while True:
        try:
            return write(client, token)
        except StaleFencingToken:
            return client.rollback()
        except DBAPIError as error:
            client.rollback()
            if error.orig is None or not _may_be_tried_again(error.orig):
                raise


def _may_be_tried_again(error: BaseException) -> bool:
    told = (getattr(error, "sqlstate", None), getattr(error, "pgcode", None), *error.args[:1])
    return not {"40001", "40P01", 1020, 1213}.isdisjoint(told)


def _all_at_once(act: Callable[[int, threading.Barrier], None]) -> None:
    """Call *act* in a thread for each number; what one raises, and nobody waits for it then."""
    together = threading.Barrier(WRITERS)

    def run(number: int) -> None:
        try:
            act(number, together)
        except BaseException:
            together.abort()
            raise

    with ThreadPoolExecutor(WRITERS) as pool:
        started = [pool.submit(run, number) for number in range(WRITERS)]
    errors = [error for each in started if (error := each.exception())]
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    assert not errors


@pytest.mark.parametrize("face", faces("driver"))
def test_no_number_is_minted_twice(face: tuple[str, str], database: Database, name: str) -> None:
    server, library = face
    url = database(server)
    minted: dict[int, list[int]] = {number: [] for number in range(WRITERS)}

    def mint(number: int, together: threading.Barrier) -> None:
        mine = lease(term(nonce=f"n{number}"))
        with open_client(library, url) as client:
            together.wait()
            while len(minted[number]) < MINTS:
                try:
                    token = fencing.mint(client.fenced, name, mine)
                    client.commit()
                except Exception as error:
                    client.rollback()
                    if not _may_be_tried_again(error):
                        raise
                else:
                    minted[number].append(token)

    _all_at_once(mint)

    assert all(tokens == sorted(tokens) for tokens in minted.values())
    everything = sorted(token for tokens in minted.values() for token in tokens)
    assert everything == list(range(1, WRITERS * MINTS + 1))
