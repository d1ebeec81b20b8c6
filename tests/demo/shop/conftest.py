"""A shop of a test's own, in this process and in workers, on either kind of database."""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from celery import _state
from sqlalchemy import select

from example_project import journal, workers
from example_project.workers import Worker
from tests.services import fork_server
from tests.services.databases import own_database
from tests.services.until import until

APP = "example_project.shop.app"
POSTGRESQL = pytest.param("postgresql", marks=pytest.mark.server("postgresql"))


class Forking:
    """As much of :mod:`subprocess` as starts a worker: these need not import Celery."""

    DEVNULL, STDOUT = subprocess.DEVNULL, subprocess.STDOUT

    @staticmethod
    def Popen(  # noqa: N802
        command: Sequence[str], *, env: Mapping[str, str], stdout: IO[bytes], **_: object
    ) -> fork_server.Forked:
        return fork_server.fork(command, stdout, env)


class Shop:
    """Its modules, imported anew: the shop is one per process, and this is another one."""

    def __init__(self, folder: Path, database: str) -> None:
        self.folder = folder
        self._environment = {"SHOP_DIR": str(folder), "SHOP_DATABASE": database}
        self.models = importlib.import_module("example_project.shop.models")
        self.orders = importlib.import_module("example_project.shop.orders")
        self.provider = importlib.import_module("example_project.shop.provider")
        self.tasks = importlib.import_module("example_project.shop.tasks")
        self.web = importlib.import_module("example_project.shop.web")

    @contextmanager
    def crew(self, count: int, **environment: str) -> Iterator[dict[int, Worker]]:
        """*count* workers by their process groups."""
        env: Mapping[str, str] = {**self._environment, **environment}
        with workers.running(APP, count, self.folder, env, concurrency=4) as crew:
            yield {worker.group: worker for worker in crew}

    def states(self) -> Counter[str]:
        """How many orders are how far."""
        with self.models.Transaction() as db:
            return Counter(db.scalars(select(self.models.Order.state)))

    def left(self, sku: str) -> int:
        with self.models.Transaction() as db:
            left: int = db.get_one(self.models.Stock, sku).left
            return left

    def refused(self) -> bool:
        """Whether a write that came too late was."""
        return any(entry["event"] == "StaleRejected" for entry in journal.read(self.folder))

    def settle(self) -> None:
        """Until no order is open; what a worker that was killed had taken is published again.

        Not before all that was published has been taken, or a slow machine would drown in it.
        """
        messages = self.folder / "broker" / "messages"
        sent = time.monotonic()

        def settled() -> bool:
            nonlocal sent
            if not {"new", "reserved"} & self.states().keys():
                return True
            if time.monotonic() - sent > 3 and not any(messages.iterdir()):
                self.orders.publish_open(self.tasks.reserve, self.tasks.charge)
                sent = time.monotonic()
            return False

        until("every order is decided", settled, timeout=120)


@contextmanager
def _shop(folder: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    current: Any = _state._tls.current_app
    default = _state.default_app
    monkeypatch.setenv("SHOP_DIR", str(folder))
    monkeypatch.setenv("SHOP_DATABASE", database)
    monkeypatch.setattr(workers, "subprocess", Forking)
    _forget()
    shop = Shop(folder, database)
    try:
        yield shop
    finally:
        shop.models.engine.dispose()
        shop.tasks.app.close()
        _forget()
        _state._tls.current_app, _state.default_app = current, default


def _forget() -> None:
    ours = ("example_project.settings", "example_project.shop", "example_project.journal")
    for name in [name for name in sys.modules if name.startswith(ours)]:
        del sys.modules[name]


@pytest.fixture
def sqlite_shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    with _shop(tmp_path, "", monkeypatch) as shop:
        yield shop


@pytest.fixture(params=["sqlite", POSTGRESQL])
def shop(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shop]:
    if request.param == "sqlite":
        with _shop(tmp_path, "", monkeypatch) as opened:
            yield opened
        return
    server = request.getfixturevalue("postgresql_server")
    with own_database(server.url) as url:
        both = url.replace("+psycopg", "")
        with _shop(tmp_path, both, monkeypatch) as opened:
            yield opened
