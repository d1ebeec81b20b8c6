"""A garbage collection that outlasts the lease: over every lock store, and on every database.

The worker is stopped inside the body, another one takes the key over and commits, and the first
goes on: the database refuses it, whatever the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from example_project.workers import can_be_written
from tests.services.brokers import close
from tests.services.databases import own_database
from tests.services.effects import Effects
from tests.services.effects_on_server import EffectsOnServer
from tests.services.lab import Lab
from tests.services.stores import SHARED, STORES, Store
from tests.services.until import until
from tests.services.worker import Worker
from tests.workers.conftest import on_store

pytestmark = [pytest.mark.slow, pytest.mark.once]

#: The fixture of a server, by the database's name; SQLite has none.
SERVERS = {"postgresql": "postgresql_server", "mariadb": "mariadb_server"}

(REDIS,) = (store for store in STORES if store.scheme == "redis")

ON_SQLITE = [
    pytest.param("sqlite", *row.values, marks=row.marks, id=f"{row.id}-sqlite") for row in SHARED
]
ON_SERVERS = [
    pytest.param(
        name,
        REDIS,
        marks=[pytest.mark.server(name), pytest.mark.server("redis")],
        id=f"redis-{name}",
    )
    for name in SERVERS
]

Make = Callable[[str, Store], tuple[Lab, Effects | EffectsOnServer]]


@pytest.fixture
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    labs: list[Lab] = []
    databases = ExitStack()

    def make(database: str, store: Store) -> tuple[Lab, Effects | EffectsOnServer]:
        url = None
        if database in SERVERS:
            server = request.getfixturevalue(SERVERS[database])
            url = databases.enter_context(own_database(server.url))
        effects = EffectsOnServer(url) if url else Effects(tmp_path)
        effects.create()
        labs.append(on_store(request, tmp_path, store, database=url))
        return labs[-1], effects

    yield make
    for lab in labs:
        close(lab.app)
    databases.close()


def pause(worker: Worker, folder: Path) -> None:
    """Stop *worker* where it holds no lock on a file: nobody would take that away from it."""

    def stands_well() -> bool:
        worker.pause()
        if all(can_be_written(file) for file in folder.glob("*.db")):
            return True
        worker.resume()
        return False

    until("it stands where it locks no file", stands_well)


@pytest.mark.parametrize(("database", "store"), [*ON_SQLITE, *ON_SERVERS])
def test_a_write_that_comes_after_a_pause_is_refused(
    make: Make, database: str, store: Store
) -> None:
    lab, effects = make(database, store)
    pay: Any = lab.app.tasks["pay"]
    with lab.worker(concurrency=1) as paused, lab.worker(concurrency=1) as other:
        # Given a worker that is stopped in the body, before its write
        other.kill()
        late = pay.delay("42", 1, hold="write")
        lab.journal.wait_for("start", id=late.id)
        pause(paused, lab.folder)
        # When another one gets the key, and has written and committed
        other.start()
        next_one = pay.delay("42", 2)
        (paid,) = lab.journal.wait_for("paid", timeout=90, id=next_one.id)
        # And the first goes on
        lab.go("write")
        paused.resume()
        until("it is refused", lambda: "was refused a late write" in paused.log)

        # Then it runs again with a newer token, and each effect is there once
        assert (late.get(timeout=120), next_one.get(timeout=60)) == (1, 2)
        for worker in (paused, other):
            worker.stop()

    refused, *again = (run["token"] for run in lab.journal.read("start", id=late.id))
    payments = effects.payments()
    assert [effect for effect, _, _ in payments] == [next_one.id, late.id]
    assert refused < paid["token"] < again[-1]
    assert [token for _, _, token in payments] == [paid["token"], again[-1]]
