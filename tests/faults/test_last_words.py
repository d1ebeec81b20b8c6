"""A task and its process end while the store is away, which hears of it all the same."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from celery_dlock.core.state import KeyState
from celery_dlock.runtime import runtime
from tests.faults.conftest import MakeLab
from tests.services.lab import Lab
from tests.services.redis import RedisServer
from tests.services.require import require
from tests.services.until import until
from tests.services.worker import Worker

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]

#: Longer than the store is away, and shorter than the test waits: who was not heard runs again.
TTL = 30.0


@pytest.fixture
def store() -> Iterator[RedisServer]:
    """It forgets nothing when it is killed."""
    require("redis")
    with RedisServer("--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


def lab_with_store(make_lab: MakeLab, store: RedisServer, **celery: int) -> Lab:
    return make_lab(
        celery={"dlock_url": store.url, **celery},
        lock={"ttl": TTL, "policy": "queue and keep"},
        task={"acks_late": False},
    )


def ends_while_the_store_is_away(lab: Lab, store: RedisServer, worker: Worker) -> None:
    """The body of a task whose message is kept ends, and its process is about to."""
    store.kill()
    lab.go("body")
    lab.journal.wait_for("end")
    until("its end is waited for", lambda: "the lock store does not know it yet" in worker.log)


def the_store_has_heard(lab: Lab) -> None:
    until("it has heard", lambda: runtime(lab.app).backend.peek("order:42") == KeyState())


def test_a_task_in_a_child_that_is_recycled_runs_once(
    make_lab: MakeLab, store: RedisServer
) -> None:
    lab = lab_with_store(make_lab, store, worker_max_tasks_per_child=1)
    with lab.worker(concurrency=1) as worker:
        result = lab.app.tasks["apply"].delay("42", 1, hold="body")
        lab.journal.wait_for("start")

        ends_while_the_store_is_away(lab, store, worker)
        store.start()

        the_store_has_heard(lab)
        assert result.get(timeout=30) == 1
        assert lab.app.tasks["apply"].delay("42", 2).get(timeout=30) == 2
    assert [entry["number"] for entry in lab.journal.read("start")] == [1, 2]


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_a_task_that_ends_in_a_warm_shutdown_runs_once(
    make_lab: MakeLab, store: RedisServer, pool: str
) -> None:
    lab = lab_with_store(make_lab, store)
    with lab.worker(pool, concurrency=1) as worker:
        result = lab.app.tasks["apply"].delay("42", 1, hold="body")
        lab.journal.wait_for("start")
        worker.send(signal.SIGTERM)
        until("it shuts down", lambda: "Warm shutdown" in worker.log)

        ends_while_the_store_is_away(lab, store, worker)
        store.start()

        worker.ended()
        assert result.get(timeout=30) == 1
        the_store_has_heard(lab)
    with lab.worker(pool, concurrency=1):
        assert lab.app.tasks["apply"].delay("42", 2).get(timeout=30) == 2
    assert [entry["number"] for entry in lab.journal.read("start")] == [1, 2]


def test_a_worker_whose_store_stays_away_ends_all_the_same_and_says_what_was_not_heard(
    make_lab: MakeLab, store: RedisServer
) -> None:
    lab = lab_with_store(make_lab, store)
    with lab.worker("prefork", concurrency=1) as worker:
        result = lab.app.tasks["apply"].delay("42", 1, hold="body")
        lab.journal.wait_for("start")
        worker.send(signal.SIGTERM)
        until("it shuts down", lambda: "Warm shutdown" in worker.log)

        ends_while_the_store_is_away(lab, store, worker)

        worker.ended()
        assert f"gave up telling the lock store that task {result.id} is done" in worker.log
