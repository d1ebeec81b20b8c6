"""The same small set of promises on every pool, with real workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from celery_dlock.core.state import Holder
from celery_dlock.runtime import forget, runtime
from tests.services.etcd import EtcdServer
from tests.services.lab import Lab
from tests.services.until import until
from tests.workers.conftest import MakeLab, embedded

POOLS = ["prefork", "threads", "solo", "gevent", "eventlet"]
CONCURRENT = [pool for pool in POOLS if pool != "solo"]


def holders(lab: Lab, key: str) -> tuple[Holder, ...]:
    return runtime(lab.app).backend.peek(key).holders


def check_no_overlap(lab: Lab, order: str, count: int) -> None:
    """The *count* bodies of *order* ran one after the other, their tokens growing."""
    entries = lab.journal.read(order=order)
    assert [entry["what"] for entry in entries] == ["start", "end"] * count
    tokens = [entry["token"] for entry in entries[::2]]
    assert tokens == sorted(set(tokens))


@pytest.fixture(scope="module", params=POOLS)
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One worker of the pool. Leases outlast the tests: only a leave can free them."""
    folder = tmp_path_factory.mktemp(request.param)
    options = {"lock": {"ttl": 600.0}, "task": {"max_retries": 0}}
    lab = Lab(folder, {"celery": embedded(folder), **options})
    with lab.worker(request.param, concurrency=4):
        yield lab
    forget(lab.app)


def test_tasks_of_one_order_never_overlap_and_their_tokens_grow(lab: Lab) -> None:
    sent = [lab.app.tasks["apply"].delay("42", number) for number in range(12)]
    lab.journal.wait_for("end", count=12, order="42")

    check_no_overlap(lab, "42", 12)
    assert {entry["id"] for entry in lab.journal.read(order="42")} == {each.id for each in sent}


def test_the_lock_is_released_after_success_and_after_failure(lab: Lab) -> None:
    for number, fails in enumerate((False, True, False)):
        result = lab.app.tasks["apply"].delay("ends", number, fails=fails)
        until("the result is there", result.ready)
        assert result.state == ("FAILURE" if fails else "SUCCESS")
        until("the key is free", lambda: not holders(lab, "order:ends"))

    assert len(lab.journal.read("end", order="ends")) == 3


@pytest.mark.parametrize("lab", CONCURRENT, indirect=True)
def test_a_refused_task_is_rescheduled_and_runs_without_spending_a_retry(lab: Lab) -> None:
    apply = lab.app.tasks["apply"]
    apply.delay("later", 1, hold="first")
    lab.journal.wait_for("start", order="later", number=1)
    second = apply.delay("later", 2)
    until("the second is refused", lambda: second.state == "RETRY")
    assert lab.journal.read("start", order="later", number=2) == []
    lab.go("first")
    assert second.get(timeout=30) == 2

    (start,) = lab.journal.read("start", order="later", number=2)
    assert (start["id"], start["retries"], start["waits"] >= 1) == (second.id, 0, True)
    check_no_overlap(lab, "later", 2)


@pytest.mark.server("etcd")
@pytest.mark.parametrize("pool", [pool for pool in POOLS if pool != "eventlet"])
def test_so_it_is_in_each_pool_that_grpc_works_in(
    make_lab: MakeLab, own_etcd_server: EtcdServer, pool: str
) -> None:
    lab = make_lab(celery={"dlock_url": own_etcd_server.url}, lock={"policy": "queue"})

    with lab.worker(pool, concurrency=4) as worker:
        for number in range(12):
            lab.app.tasks["apply"].delay("42", number)
        lab.journal.wait_for("end", count=12)
        until("the key is free", lambda: not holders(lab, "order:42"))
        assert worker.stop() == 0

    check_no_overlap(lab, "42", 12)


@pytest.mark.parametrize("pool", POOLS)
def test_renewal_keeps_a_body_safe_that_takes_longer_than_its_ttl(
    make_lab: MakeLab, pool: str
) -> None:
    lab = make_lab(lock={"ttl": 1.0})
    apply = lab.app.tasks["apply"]

    with lab.worker(pool):
        # Given a body that holds until its lease would have ended twice
        apply.delay("42", 1, hold="first")
        lab.journal.wait_for("start", number=1)
        (first,) = holders(lab, "order:42")
        twice = first.since + 2_000_000
        until("it was renewed", lambda: holders(lab, "order:42")[0].expires > twice)
        apply.delay("42", 2)

        (last,) = holders(lab, "order:42")
        assert (last.nonce, last.token) == (first.nonce, first.token)
        lab.go("first")
        lab.journal.wait_for("end", number=2)

    check_no_overlap(lab, "42", 2)


def open_files(pid: int) -> set[str]:
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.add(descriptor.readlink().name)
        except FileNotFoundError:
            continue
    return found


def test_under_prefork_no_child_inherits_the_lock_store(make_lab: MakeLab) -> None:
    lab = make_lab(celery={"worker_max_tasks_per_child": 1})

    with lab.worker("prefork", concurrency=1) as worker:
        # Given a main process that has opened the store, to sweep it
        until("it sweeps", lambda: "locks.db" in open_files(worker.pid))
        # When a child has run a task with a lock, and its replacement is forked
        lab.app.tasks["apply"].delay("42", 1, hold="here")
        (entry,) = lab.journal.wait_for("start", number=1)
        assert entry["pid"] != worker.pid
        assert "locks.db" in open_files(entry["pid"])
        lab.go("here")
        replaced = until("a new child", lambda: set(children(worker.pid)) - {entry["pid"]})

        assert all("locks.db" not in open_files(pid) for pid in replaced)


def children(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children()]
