"""Databases that have the tables; a module's tests share each, and take names of their own."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from celery_dlock import fencing
from tests.fencing.clients import Client, open_client
from tests.fencing.redis_orders import client, connect, order
from tests.services.databases import own_database

__all__ = ["client", "connect", "order"]

Database = Callable[[str], str]
Open = Callable[..., Client]


@pytest.fixture(scope="module")
def empty_database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Database]:
    """The URL of a new database without tables on the server of that name."""
    with ExitStack() as stack:

        def make(server: str) -> str:
            if server == "sqlite":
                return f"sqlite:///{tmp_path_factory.mktemp('fence') / 'fence.db'}"
            running = request.getfixturevalue(f"{server}_server")
            return stack.enter_context(own_database(running.url))

        yield make


@pytest.fixture(scope="module")
def database(empty_database: Database) -> Database:
    """The URL of the module's database on the server of that name."""
    made: dict[str, str] = {}

    def find(server: str) -> str:
        if server not in made:
            url = empty_database(server)
            with open_client("connection", url) as client:
                fencing.create_table(client.fenced)
                client.commit()
            made[server] = url
        return made[server]

    return find


@pytest.fixture
def name() -> str:
    """What nobody else calls a resource or an effect."""
    return f"order:{uuid.uuid4().hex}"


@pytest.fixture
def clients() -> Iterator[Open]:
    """Open clients that are closed at the end."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(open_client(*args, **options))
