"""The page about sizing says what a key, a message and a finished task take in real stores."""

from __future__ import annotations

import re
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from urllib.error import HTTPError

import psycopg
import pytest

from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim, Outcome, Park, Run, WaitMode
from celery_dlock.registry import open_backend
from celery_dlock.stores.base import BackendOptions, LockBackend
from tests.services.etcd import EtcdServer
from tests.services.postgresql import PostgresqlServer
from tests.services.redis import RedisServer
from tests.services.require import require
from tests.services.zookeeper import ZooKeeperServer

pytestmark = [pytest.mark.slow, pytest.mark.once]

PAGE = Path("docs/how-to/sizing.rst").read_text(encoding="utf-8")
STORES = ("Redis", "SQLite", "PostgreSQL", "etcd", "ZooKeeper")
ROWS = {
    name: dict(zip(STORES, (int(figure.replace(",", "")) for figure in figures), strict=True))
    for name, *figures in re.findall(r"   \* - (a .*)\n" + 5 * r"     - ([\d,]+)\n", PAGE)
}

#: How many bytes the store takes by now.
Size = Callable[[], int]
Running = Callable[[Path], AbstractContextManager[tuple[str, Size]]]


@contextmanager
def redis(_: Path) -> Iterator[tuple[str, Size]]:
    require("redis")
    with RedisServer() as server, closing(server.client()) as client:

        def size() -> int:
            # Buffers come and go. What INFO says of them was so at its last tick, and may count
            # the script that was sent just then; CLIENT LIST says what is so now.
            buffers = sum(int(connection["tot-mem"]) for connection in client.client_list())
            return int(client.info("memory")["used_memory"]) - buffers

        yield server.url, size


@contextmanager
def sqlite(folder: Path) -> Iterator[tuple[str, Size]]:
    def size() -> int:
        with closing(sqlite3.connect(folder / "locks.db")) as db:
            pages, free, of_bytes = (
                db.execute(f"PRAGMA {what}").fetchone()[0]
                for what in ("page_count", "freelist_count", "page_size")
            )
        return int((pages - free) * of_bytes)

    yield f"sqlite:///{folder / 'locks.db'}", size


@contextmanager
def postgresql(_: Path) -> Iterator[tuple[str, Size]]:
    with PostgresqlServer(require("postgresql").parent) as server:

        def size() -> int:
            server.query("VACUUM FULL")
            return int(
                server.query(
                    "SELECT sum(pg_total_relation_size(oid)) FROM pg_class "
                    "WHERE relkind = 'r' AND relnamespace = 'dlock'::regnamespace"
                )
            )

        yield server.url, size


@contextmanager
def etcd(_: Path) -> Iterator[tuple[str, Size]]:
    require("etcd")
    with EtcdServer() as server:

        def size() -> int:
            revision = server.ask("maintenance/status")["header"]["revision"]
            with suppress(HTTPError):  # nothing was written since it was compacted
                server.ask("kv/compaction", revision=revision, physical=True)
            server.ask("maintenance/defragment")
            return int(server.ask("maintenance/status")["dbSize"])

        yield server.url, size


@contextmanager
def zookeeper(_: Path) -> Iterator[tuple[str, Size]]:
    require("zookeeper")
    with ZooKeeperServer() as server:
        yield server.url, lambda: server.monitored("approximate_data_size")


def finish(backend: LockBackend, tasks: int) -> None:
    for _ in range(tasks):  # of one key, whose token counts elsewhere
        mine = claim(backend, "order:100000")
        backend.enter(mine)
        backend.leave(mine, Outcome.DONE)


def use(backend: LockBackend, tasks: int) -> None:
    for number in range(tasks):
        mine = claim(backend, f"order:{200_000 + number}")
        backend.enter(mine)
        backend.leave(mine, Outcome.OVER)


def hold(backend: LockBackend, tasks: int) -> None:
    for number in range(tasks):
        mine = claim(backend, f"order:{300_000 + number}")
        assert isinstance(backend.enter(mine).verdict, Run)


def wait(backend: LockBackend, tasks: int) -> None:
    backend.enter(claim(backend, "order:400000"))
    for _ in range(tasks):
        mine = claim(backend, "order:400000", WaitMode.QUEUE)
        assert isinstance(backend.enter(mine, b"x" * 1000).verdict, Park)


def claim(backend: LockBackend, key: str, wait: WaitMode = WaitMode.NOT) -> Claim:
    return Claim(
        *(key, f"{uuid.uuid4()}:0:0", uuid.uuid4().hex, backend.lease_of(30 * SECOND)),
        wait=wait,
        done_ttl=7200 * SECOND,
        name="shop.charge",
        where="celery@web1:4711",
    )


ACTS = {
    "a task that is finished": finish,
    "a key that was used": use,
    "a key that is held": hold,
    "a task that waits, with a message of 1,000 bytes": wait,
}


@pytest.mark.parametrize(
    ("store", "running", "tasks"),  # so many that what is there but once counts for little
    [
        pytest.param("Redis", redis, 2000, marks=pytest.mark.server("redis")),
        pytest.param("SQLite", sqlite, 500),
        pytest.param("PostgreSQL", postgresql, 2000, marks=pytest.mark.server("postgresql")),
        pytest.param("etcd", etcd, 500, marks=pytest.mark.server("etcd")),
        pytest.param("ZooKeeper", zookeeper, 500, marks=pytest.mark.server("zookeeper")),
    ],
)
def test_a_store_takes_about_as_much_as_the_page_says(
    store: str, running: Running, tasks: int, tmp_path: Path
) -> None:
    found = {}
    with running(tmp_path) as (url, size), closing(open_backend(url, BackendOptions())) as backend:
        warm = claim(backend, "warm")
        backend.enter(warm)
        backend.leave(warm, Outcome.DONE)  # makes what is there but once
        for name, act in ACTS.items():
            before = size()
            act(backend, tasks)
            found[name] = (size() - before) / tasks

    assert found == pytest.approx(
        {name: row[store] for name, row in ROWS.items()}, rel=0.25, abs=20
    )


@pytest.mark.server("postgresql")
def test_a_finished_task_writes_to_postgresqls_log_about_as_much_as_the_page_says(
    tmp_path: Path,
) -> None:
    (said,) = re.findall(r"([\d,]+) bytes of\s+WAL", PAGE)
    with (
        postgresql(tmp_path) as (url, _),
        closing(open_backend(url, BackendOptions())) as backend,
        psycopg.connect(url, autocommit=True) as connection,
    ):

        def written() -> int:
            row = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
            return int(row[0]) if row else 0

        finish(backend, 100)  # after a checkpoint the first change of a page writes all of it
        before = written()
        finish(backend, 500)

        assert (written() - before) / 500 == pytest.approx(int(said.replace(",", "")), rel=0.25)


def test_the_page_calculates_with_its_own_figures() -> None:
    done, used = (ROWS[name]["Redis"] for name in list(ROWS)[:2])

    assert f"DONE, USED = {done}, {used}" in PAGE
