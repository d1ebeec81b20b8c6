"""The store comes back with other data than before, to workers that go on running.

It is restored from a backup, or comes back empty. What they held and what waits is then another
matter than what they know; SQLite's file is in ``tests/contract/test_sqlite_company.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from celery_dlock.runtime import runtime
from celery_dlock.testing.contract.words import claim, running
from celery_dlock.worker.periodic import LOST_DATA
from tests.services.brokers import close, kept_in_sqlite, over_folder
from tests.services.lab import Lab
from tests.services.redis_cluster import RedisCluster
from tests.services.turns import done, held, nothing_is_left, parked
from tests.services.until import until
from tests.services.worker import Worker

pytestmark = [pytest.mark.slow, pytest.mark.once]

#: In microseconds, of the store's.
MINUTE = 60_000_000

#: ``make_lab(url)``: tasks that queue and are unique, with their locks in the store at *url*.
MakeLab = Callable[[str], Lab]


@pytest.fixture
def make_lab(tmp_path: Path) -> Iterator[MakeLab]:
    labs: list[Lab] = []

    def make(url: str) -> Lab:
        store = {"dlock_url": url, "dlock_ttl": 5.0}
        settings = {**over_folder(tmp_path), **kept_in_sqlite(tmp_path), **store}
        lock = {"policy": "queue", "ttl": None, "unique": "done"}
        labs.append(Lab(tmp_path, {"celery": settings, "lock": lock, "task": {"acks_late": True}}))
        return labs[-1]

    yield make
    for lab in labs:
        close(lab.app)


@contextmanager
def other_tasks(lab: Lab) -> Iterator[None]:
    """Tasks of other keys come all the time, so each child uses the store."""
    over = threading.Event()

    def publish() -> None:
        number = 0
        while not over.wait(0.2):
            lab.app.tasks["quick"].delay(f"other {number}", number)
            number += 1

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def work_goes_on(lab: Lab, worker: Worker) -> None:
    """Tasks run, and nobody has anything to complain of any more."""
    until("the outage is over", lambda: _outages_that_began(worker) == _outages_that_ended(worker))
    before = len(worker.log.splitlines())
    numbers = list(range(100, 120))
    assert done([lab.app.tasks["apply"].delay("new", number) for number in numbers]) == numbers
    nothing_is_left(lab, "new")
    lines = [line for line in worker.log.splitlines()[before:] if ": INFO/" not in line]
    assert [line for line in lines if "No hostname was supplied" not in line] == []


def _outages_that_began(worker: Worker) -> int:
    return worker.log.count("the lock store is unavailable")


def _outages_that_ended(worker: Worker) -> int:
    return worker.log.count("the lock store is available again")


@pytest.mark.parametrize(
    "store",
    [
        pytest.param("etcd", marks=pytest.mark.server("etcd")),
        pytest.param("zookeeper", marks=pytest.mark.server("zookeeper")),
    ],
)
def test_workers_go_on_with_a_store_that_is_restored_from_a_backup(
    make_lab: MakeLab, request: pytest.FixtureRequest, store: str
) -> None:
    server = request.getfixturevalue(f"own_{store}_server")
    lab = make_lab(server.url)
    apply = lab.app.tasks["apply"]
    with lab.worker("prefork", concurrency=4) as worker:
        # Given a backup in which a key is held, and one for which a message waits
        held(lab, "42", "alone")
        waits = apply.delay("42", 1)
        parked(lab, "42", 1)
        server.back_up()
        lab.go("42")
        assert done([waits]) == [1]
        nothing_is_left(lab, "42", "alone")
        # And a lock that is taken long after it
        backend = runtime(lab.app).backend
        for number in range(500):
            backend.swap(f"write {number}", None, b"", MINUTE)
        # And a worker that has looked at the store after it: only a sweep wakes this task
        running(backend.enter(claim("dead", key="order:swept", ttl=1)))
        assert done([apply.delay("swept", 0)]) == [0]
        lost = apply.delay("later", 0, hold="later")
        (later,) = lab.journal.wait_for("start", order="later")

        with other_tasks(lab):
            server.restore()

            # Then the message that is back runs again, and new tasks after it
            _, again = lab.journal.wait_for("start", count=2, order="42", number=1, timeout=120)
            assert again["token"] < later["token"]
            assert done([apply.delay("42", 2)]) == [2]
            # And the key is free whose holder ended long ago, also for the same call
            assert done([apply.delay("alone", 1)]) == [1]
            until("a new call", lambda: not apply.delay("alone", 0, hold="42").is_duplicate)
            lab.go("later")
            assert done([lost]) == [0]

        nothing_is_left(lab, "42", "alone", "later")
        until("people are told", lambda: LOST_DATA in worker.log)
        (told,) = (line for line in worker.log.splitlines() if LOST_DATA in line)
        assert "WARNING/MainProcess" in told
        assert "lost its lock on 'order:later'" in worker.log
        work_goes_on(lab, worker)
        assert worker.log.count(LOST_DATA) == 1


@pytest.mark.server("redis")
def test_workers_go_on_with_a_cluster_that_comes_back_empty(
    make_lab: MakeLab, own_redis_cluster: RedisCluster
) -> None:
    lab = make_lab(own_redis_cluster.url)
    apply = lab.app.tasks["apply"]
    with lab.worker("prefork", concurrency=4) as worker:
        # Given a key that is held, and one for which a message waits
        held(lab, "42")
        forgotten = apply.delay("42", 1)
        parked(lab, "42", 1)
        (first,) = lab.journal.wait_for("start", order="42")

        own_redis_cluster.wipe()

        # Then the holder is told, and new tasks run, with larger tokens
        until("it is told", lambda: "lost its lock on 'order:42'" in worker.log)
        assert done([apply.delay("42", 2)]) == [2]
        (second,) = lab.journal.wait_for("start", order="42", number=2)
        assert second["token"] > first["token"]
        # And the message that waited is lost, which blocks no call
        assert forgotten.state == "PENDING"
        lab.go("42")
        nothing_is_left(lab, "42")
        work_goes_on(lab, worker)
