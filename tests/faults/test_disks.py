"""The disk below a server is full, or takes its time.

A full one below SQLite is in ``tests/contract/test_sqlite_company.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing

import pytest

from celery_dlock import BackendUnavailable, Lease
from celery_dlock.core.state import Outcome
from celery_dlock.registry import open_backend
from celery_dlock.runtime import runtime
from celery_dlock.stores.base import BackendOptions
from celery_dlock.testing.contract.words import QUEUE, claim, park, running, woken
from tests.faults.conftest import MakeLab, all_have_left
from tests.services.effects import Effects
from tests.services.machine import (
    OnMachine,
    PostgresqlOnMachine,
    RedisOnMachine,
    ZooKeeperOnMachine,
)
from tests.services.process import Process, renewal
from tests.services.require import require
from tests.services.until import until

pytestmark = [pytest.mark.slow, pytest.mark.once]

LOG = ("--appendonly", "yes", "--appendfsync", "everysec")

DRIVER = {"socket_timeout": 0.3}

#: Seconds.
TTL = 1.5


def process_on(url: str, **options: object) -> Process:
    return Process(open_backend(url, BackendOptions("disks", **options)))  # type: ignore[arg-type]


@pytest.mark.server("redis")
def test_a_redis_whose_disk_is_full_refuses_what_it_cannot_keep_and_holders_are_told() -> None:
    with RedisOnMachine(*LOG) as server, closing(process_on(server.url)) as process:
        store = process.store
        held = process.take("held", "key", TTL)
        park(store, "before")

        server.machine.disk_is_full(True)

        until("it is refused", lambda: process.answers("other", "another", TTL) is None)
        with pytest.raises(BackendUnavailable, match="MISCONF"):
            park(store, "refused")
        until("its holder is told", lambda: "key" in process.told, timeout=TTL + 1)
        assert held.lost
        server.machine.disk_is_full(False)
        until("it is writable", lambda: isinstance(process.answers("other", "another", TTL), Lease))
        park(store, "after")
        # As long as it syncs, Redis keeps back what is to be written: up to two seconds
        until("it is written", lambda: not server.info("persistence")["aof_buffer_length"])
        server.restart()
        kept = [store.message("key", task) is not None for task in ("before", "refused", "after")]
        assert kept == [True, False, True]


@pytest.mark.server("postgresql")
def test_what_finds_no_room_in_the_tables_of_a_postgresql_has_not_happened() -> None:
    with PostgresqlOnMachine() as server, closing(process_on(server.url)) as process:
        store, held = process.store, claim("held", ttl=60)
        token = running(store.enter(held)).token
        park(store, "before")

        # When no table can grow
        server.machine.disk_is_full(True)

        # Then a renewal, a release and a message are refused
        requests: list[Callable[[], object]] = [
            lambda: store.renew([held]),
            lambda: store.leave(held, Outcome.DONE),
            lambda: store.enter(claim("refused", wait=QUEUE), os.urandom(500_000)),
        ]
        for request in requests:
            with pytest.raises(BackendUnavailable, match="No space left on device"):
                request()
        assert [holder.token for holder in store.peek("key").holders] == [token]
        assert [task.task for task in store.peek("key").waiting] == ["before"]
        # And with room the next one is woken, once
        server.machine.disk_is_full(False)
        assert woken(store.leave(held, Outcome.DONE)) == ["before"]
        assert woken(store.leave(held, Outcome.DONE)) == []
        # And what a table has grown to is used when it can grow no more
        following = process.take("before", "key", 5.0)
        until("it is renewed", renewal(following))
        server.machine.disk_is_full(True)
        until("it is renewed", renewal(following))
        assert not following.lost


@pytest.mark.server("redis")
@pytest.mark.parametrize(
    "server_of",
    [
        pytest.param(lambda: RedisOnMachine(*LOG), id="redis"),
        pytest.param(PostgresqlOnMachine, marks=pytest.mark.server("postgresql"), id="postgresql"),
    ],
)
def test_tasks_wait_for_room_on_the_disk_of_the_store_and_each_runs_once(
    server_of: Callable[[], RedisOnMachine | PostgresqlOnMachine],
    make_lab: MakeLab,
    effects: Effects,
) -> None:
    with server_of() as server:
        lab = make_lab(celery={"dlock_url": server.url}, lock={"ttl": 10.0, "policy": "queue"})
        pay, store = lab.app.tasks["pay"], runtime(lab.app).backend
        with lab.worker(concurrency=2) as worker, closing(process_on(server.url)) as process:
            # Given a body that runs, and a task that waits behind it
            first = pay.delay("42", 1, hold="body")
            lab.journal.wait_for("start")
            second = pay.delay("42", 2)
            until("it waits", lambda: store.peek("order:42").parked == 1)

            # When nothing can be written any more, a third one comes, and the first ends
            server.fill_disk()
            until("it is refused", lambda: process.answers("other", "another", TTL) is None)
            third = pay.delay("42", 3)
            until("it goes back", lambda: f"[{third.id}] was rescheduled" in worker.log)
            lab.go("body")
            assert first.get(timeout=30) == 1

            # Then all run when there is room, and none twice
            server.make_room()
            assert [second.get(timeout=60), third.get(timeout=60)] == [2, 3]
            all_have_left(lab, "42")
    assert len(lab.journal.read("end")) == len(effects.payments()) == 3


def redis_that_syncs() -> RedisOnMachine:
    require("redis")
    return RedisOnMachine("--appendonly", "yes", "--appendfsync", "always")


@pytest.mark.parametrize(
    "server_of",
    [
        pytest.param(redis_that_syncs, marks=pytest.mark.server("redis"), id="redis"),
        pytest.param(ZooKeeperOnMachine, marks=pytest.mark.server("zookeeper"), id="zookeeper"),
        pytest.param(PostgresqlOnMachine, marks=pytest.mark.server("postgresql"), id="postgresql"),
    ],
)
def test_a_server_that_ends_for_its_disk_is_full_has_all_when_there_is_room(
    server_of: Callable[[], OnMachine],
) -> None:
    with server_of() as server, closing(process_on(server.url)) as process:  # type: ignore[attr-defined]
        running(process.store.enter(claim("holder")))
        park(process.store, "before")

        server.fill_disk()
        until("it is refused", lambda: process.answers("other", "another", TTL) is None)
        until("it has ended", lambda: not server.running)
        server.make_room()

        until("it is back", lambda: isinstance(process.answers("other", "another", TTL), Lease))
        assert [each.task for each in process.store.peek("key").waiting] == ["before"]


@pytest.mark.server("redis")
def test_a_disk_that_is_slow_makes_no_answer_that_is_not_true() -> None:
    with redis_that_syncs() as server, closing(process_on(server.url, driver=DRIVER)) as process:
        store = process.store
        running(store.enter(claim("holder", ttl=60)))

        # When the disk takes longer than is waited for
        server.machine.sync_takes(DRIVER["socket_timeout"] * 2)
        with pytest.raises(BackendUnavailable):
            park(store, "unknown")
        with pytest.raises(BackendUnavailable):
            store.enter(claim("asked", key="another"))
        server.machine.sync_takes(0)
        until("it answers", lambda: process.answers("later", "a third", TTL))

        # Then who asks again hears what there is, once
        park(store, "unknown")
        token = running(store.enter(claim("asked", key="another"))).token
        assert [each.task for each in store.peek("key").waiting] == ["unknown"]
        assert [each.token for each in store.peek("another").holders] == [token]
        # And what was answered is there after a power cut
        store.leave(claim("asked", key="another"), Outcome.OVER)
        server.cut_power()
        server.start()
        assert [each.task for each in store.peek("key").waiting] == ["unknown"]
        assert store.peek("another").holders == ()
