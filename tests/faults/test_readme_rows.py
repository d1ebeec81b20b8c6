"""Each row of README's tables does what it says, with two workers of which one is killed.

The bodies' own journal is the judge. Broker, results and locks are in one Redis, as README has it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from celery.result import AsyncResult

import celery_dlock
from celery_dlock import LockContended, LockTimeout
from tests.cli.terminal import dlock
from tests.faults.conftest import BROKER, LOCKS, RESULTS, database
from tests.services import readme
from tests.services.brokers import close
from tests.services.lab import Journal
from tests.services.redelivery import deliver_again, not_finished
from tests.services.redis import RedisServer
from tests.services.until import until
from tests.services.worker import Worker

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow, pytest.mark.once]

APP = "tests.services.readme:app"

#: Seconds, a lease that ends soon after its holder was killed.
TTL = 3.0

#: Rows of which another test of this kind tells, by the file that it is in.
ELSEWHERE = {
    "the late write of a paused worker to be refused": (
        "tests/faults/test_paused.py",
        "test_the_late_write_of_a_copy_that_was_overtaken_is_refused",
    ),
    "a beat on every host, and each tick once": (
        "tests/beat/test_failover.py",
        "test_a_leader_that_fails_is_followed_and_every_tick_is_run_once",
    ),
}


class Shop:
    """README's tasks, called here and run by two workers."""

    def __init__(self, folder: Path, server: RedisServer) -> None:
        self.folder = folder
        self.config = {
            "folder": str(folder),
            "celery": {
                "broker_url": database(server, BROKER),
                "result_backend": database(server, RESULTS),
                "dlock_url": database(server, LOCKS),
                "dlock_ttl": TTL,
                "worker_prefetch_multiplier": 1,  # both workers have something to do
                "task_track_started": True,  # a result says that it is parked
            },
        }
        self.app = readme.make_app(self.config)
        self.journal = Journal(folder / "journal")
        self.workers = [
            Worker(folder, self.config, name, "threads", 12, APP) for name in ("first", "second")
        ]

    def call(self, row: str, number: int, **how: Any) -> AsyncResult:
        return self.app.tasks[row].delay(number, **how)

    def held(self, row: str, number: int = 1, **how: Any) -> AsyncResult:
        """The same, as soon as its body runs, in which it stays until there was the kill."""
        result = self.call(row, number, hold=True, **how)
        self.journal.wait_for("start", number=number)
        return result

    def kill_who_runs(self, number: int = 1, unacknowledged: int = 1) -> None:
        """Kill its worker, let all bodies go on, and let the broker deliver again.

        Before that workers have so many messages: Redis loses what it hands over to one that dies.
        """
        until("all is in hand", lambda: not_finished(self.app) == (0, unacknowledged))
        pid = self.journal.read("start", number=number)[-1]["pid"]
        next(worker for worker in self.workers if worker.process and worker.pid == pid).kill()
        self.journal.write("killed", of=pid)
        (self.folder / "go-on").touch()
        deliver_again(self.app)

    def ran(self, what: str = "end") -> list[int]:
        """The numbers of the bodies that ended, in the order in which they did."""
        return [entry["number"] for entry in self.journal.read(what)]

    def at_once(self) -> Iterator[list[dict[str, Any]]]:
        """What ran at the same time, each time that a body began."""
        running: dict[str, dict[str, Any]] = {}
        for entry in self.journal.read():
            if entry["what"] == "killed":
                running = {key: of for key, of in running.items() if of["pid"] != entry["of"]}
            elif entry["what"] == "end":
                del running[entry["id"]]
            else:
                assert entry["id"] not in running, "it ran beside itself"
                running[entry["id"]] = entry
                yield list(running.values())


@pytest.fixture
def shop(tmp_path: Path, redis_server: RedisServer) -> Iterator[Shop]:
    for number in (BROKER, RESULTS, LOCKS):
        with redis_server.client() as client:
            client.select(number)
            client.flushdb()
    shop = Shop(tmp_path, redis_server)
    try:
        for worker in shop.workers:
            worker.start()
        yield shop
    finally:
        for worker in shop.workers:
            worker.kill()
        close(shop.app)


def done(*results: AsyncResult) -> list[Any]:
    return [result.get(timeout=120, interval=0.05) for result in results]


def alone(shop: Shop) -> None:
    """No two bodies of one order at the same time."""
    for running in shop.at_once():
        assert max(Counter(entry["order"] for entry in running).values()) == 1


def one_at_a_time(shop: Shop, row: str) -> None:
    first, second = shop.held(row), shop.call(row, 2)
    until("the second waits", lambda: second.state == "RETRY")
    assert done(shop.call(row, 3, order_id=43)) == [3]  # another order is not kept off
    shop.kill_who_runs(unacknowledged=2)
    assert done(first, second) == [1, 2]
    assert sorted(shop.ran()) == [1, 2, 3]
    alone(shop)


def in_order(shop: Shop, row: str) -> None:
    sent = [shop.held(row), *(shop.call(row, number) for number in range(2, 6))]
    shop.kill_who_runs()
    assert done(*sent) == shop.ran() == [1, 2, 3, 4, 5]
    alone(shop)


def waits_its_turn(shop: Shop, row: str) -> None:
    sent = [shop.held(row)]
    for number in (2, 3):
        sent.append(shop.call(row, number))
        until("it is parked", lambda: sent[-1].state == "PARKED")
    shop.kill_who_runs()
    assert done(*sent) == [1, 2, 3]
    assert [number for number in shop.ran() if number > 1] == [2, 3]
    alone(shop)


def left_out(shop: Shop, row: str) -> None:
    first = shop.held(row)
    (skipped,) = done(shop.call(row, 2))
    assert (skipped["skipped"], skipped["holder"]) == (True, first.id)
    shop.kill_who_runs()
    assert done(first) == shop.ran() == [1]


def replaced(shop: Shop, row: str) -> None:
    # Each has its place as soon as it is called
    first, _, newest = shop.held(row), shop.call(row, 2), shop.call(row, 3)
    shop.kill_who_runs()
    assert done(first, newest) == shop.ran() == [1, 3]
    alone(shop)


def refused(error: type[Exception], shop: Shop, row: str) -> None:
    first = shop.held(row)
    with pytest.raises(error) as caught:
        done(shop.call(row, 2))
    assert getattr(caught.value, "holder", None) == first.id
    shop.kill_who_runs()
    assert done(first) == shop.ran() == [1]


def published_once(shop: Shop, row: str) -> None:
    first, second = shop.held(row), shop.call(row, 1, hold=True)
    assert (second.is_duplicate, second.id) == (True, first.id)
    shop.kill_who_runs()
    assert done(first) == shop.ran() == [1]
    sent: list[AsyncResult] = []

    def is_another() -> bool:
        sent.append(shop.call(row, 1, hold=True))
        return not sent[-1].is_duplicate

    until("the claim has ended", is_another)
    assert done(sent[-1]) == [1]
    assert shop.ran() == [1, 1]


def only_the_last(shop: Shop, row: str) -> None:
    results = [shop.call(row, number, hold=True) for number in range(1, 6)]
    shop.journal.wait_for("start")
    shop.kill_who_runs(5)
    assert done(*results) == [5] * 5
    assert (shop.ran("start"), shop.ran()) == ([5, 5], [5])


def limited(shop: Shop, row: str) -> None:
    tenants = [f"tenant {number // 4}" for number in range(32)]
    sent = [shop.call(row, n, hold=True, tenant=tenant) for n, tenant in enumerate(tenants)]
    shop.journal.wait_for("start", count=20)
    shop.kill_who_runs(shop.ran("start")[-1], len(sent))
    assert done(*sent) == sorted(shop.ran()) == list(range(32))
    running = list(shop.at_once())
    assert max(map(len, running)) == 20
    assert max(Counter(e["tenant"] for e in now).most_common(1)[0][1] for now in running) == 3


def readers_or_a_writer(shop: Shop, row: str) -> None:
    readers = [shop.held(row, 1), shop.held(row, 2)]
    writer = shop.call("writer", 3)
    until("the writer waits", lambda: writer.state == "RETRY")
    shop.kill_who_runs(unacknowledged=3)
    assert sorted(done(*readers, writer)) == sorted(shop.ran()) == [1, 2, 3]
    running = [sorted(entry["number"] for entry in now) for now in shop.at_once()]
    assert [1, 2] in running
    assert [now for now in running if 3 in now] == [[3]]


def once_a_minute(shop: Shop, row: str) -> None:
    first = shop.held(row)
    shop.kill_who_runs()
    assert done(first) == shop.ran() == [1]
    began, again = [entry["at"] for entry in shop.journal.read("start")]
    assert again - began >= 60 - TTL / 10  # a start is noted a little later than it is counted


def in_a_view(shop: Shop, row: str) -> None:
    def view(number: int) -> None:
        names: dict[str, Any] = {"lock": partial(celery_dlock.lock, app=shop.app), "note": note}
        exec(f"{readme.ROWS[row]}\n    note({number})", names)

    def note(number: int) -> None:
        for what in ("start", "end"):
            shop.journal.write(what, id="view", order=42, number=number)

    first = shop.held("one task per order at a time")
    with pytest.raises(LockTimeout) as caught:
        view(2)
    assert caught.value.holder == first.id
    shop.kill_who_runs()
    until("the view has it", lambda: taken(lambda: view(3)))
    assert done(first) == [1]
    assert sorted(shop.ran()) == [1, 3]
    alone(shop)


def taken(view: Callable[[], None]) -> bool:
    try:
        view()
    except LockTimeout:
        return False
    return True


def told_why(shop: Shop, row: str) -> None:
    (shop.folder / "shop.json").write_text(json.dumps(shop.config))

    def show(task_id: str) -> str:
        line = readme.ROWS[row].replace("TASK_ID", task_id)
        arguments = line.removeprefix("$ celery -A shop dlock ").split()
        env = {"LAB_CONFIG": str(shop.folder / "shop.json")}
        return dlock(shop.folder, *arguments, app=APP, env=env).stdout

    first, second = shop.held("queue"), shop.call("queue", 2)
    until("it waits", lambda: second.state == "PARKED")
    assert first.id in show(second.id)
    assert "order:42" in show(second.id)
    shop.kill_who_runs()
    assert done(first, second) == shop.ran() == [1, 2]
    assert "done" in show(second.id)


SCENES: dict[str, Callable[[Shop, str], None]] = {
    "one task per order at a time": one_at_a_time,
    "the tasks of an order to run in the order in which they were called": in_order,
    "a task to be left out while another one runs": left_out,
    "a call not to be published while one like it waits or runs": published_once,
    "only the last call of a burst to run": only_the_last,
    "three tasks per tenant, twenty in all": limited,
    "many readers, or one writer": readers_or_a_writer,
    "one start per minute": once_a_minute,
    "the same lock in a view or a script": in_a_view,
    "to know why a task did not run": told_why,
    "reschedule": one_at_a_time,
    "queue": waits_its_turn,
    "ordered": in_order,
    "replace": replaced,
    "skip": left_out,
    "fail": partial(refused, LockContended),
    "wait": partial(refused, LockTimeout),
}


@pytest.mark.parametrize("row", SCENES)
def test_a_row_keeps_its_word_although_a_worker_is_killed(shop: Shop, row: str) -> None:
    SCENES[row](shop, row)
