"""What a store still has of what it has acknowledged when the power of its machine was cut.

Nothing is left of what was not synced, which is the worst that a disk may do. Tokens do not fall,
whatever is lost: a store that has forgotten goes by its clock.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import islice
from pathlib import Path

import pytest

from celery_dlock.errors import BackendUnavailable
from celery_dlock.registry import open_backend
from celery_dlock.stores.base import BackendOptions, LockBackend
from celery_dlock.testing.contract.words import claim, park, running
from tests.services.etcd import EtcdServer
from tests.services.machine import Machine, RedisOnMachine, ZooKeeperOnMachine
from tests.services.parker import PREFIX
from tests.services.require import require
from tests.services.until import until

pytestmark = [pytest.mark.slow, pytest.mark.once]

MANY = 50

Record = Callable[[str, object], None]


@contextmanager
def opened(url: str) -> Iterator[LockBackend]:
    with closing(open_backend(url, BackendOptions(prefix=PREFIX))) as backend:
        yield backend


def parked(backend: LockBackend, first: int = 0, many: int = MANY) -> list[str]:
    """So many tasks that wait for ``key``, each of them acknowledged."""
    tasks = [f"task {number}" for number in range(first, first + many)]
    park(backend, *tasks)
    return tasks


def left(backend: LockBackend) -> list[str]:
    """The tasks that wait, in their order, with their messages."""
    tasks = [each.task for each in backend.peek("key").waiting]
    assert [backend.message("key", task) for task in tasks] == [
        f"message of {task}".encode() for task in tasks
    ]
    return tasks


def holders(backend: LockBackend) -> list[str]:
    return [holder.task for holder in backend.peek("key").holders]


def next_token(backend: LockBackend) -> int:
    return running(backend.enter(claim("next", key="another"))).token


@contextmanager
def redis_with(*options: str) -> Iterator[tuple[RedisOnMachine, LockBackend]]:
    """A server with these options, and the store on it, where ``holder`` has the key."""
    require("redis")
    with RedisOnMachine(*options) as server, opened(server.url) as backend:
        running(backend.enter(claim("holder")))
        yield server, backend


def log(sync: str) -> tuple[str, ...]:
    return "--appendonly", "yes", "--appendfsync", sync


@pytest.mark.server("redis")
def test_a_redis_that_always_syncs_has_all_that_it_has_acknowledged() -> None:
    with redis_with(*log("always")) as (server, backend), server.client() as client:
        tasks = parked(backend)
        client.bgrewriteaof()
        tasks += parked(backend, MANY)
        token = next_token(backend)

        server.cut_power()
        server.start()

        assert left(backend) == tasks
        assert holders(backend) == ["holder"]
        assert running(backend.enter(claim("after", key="a third"))).token > token


@pytest.mark.server("redis")
def test_a_redis_that_syncs_every_second_has_all_but_the_newest(record_property: Record) -> None:
    with redis_with(*log("everysec")) as (server, backend):
        tasks = parked(backend)
        seen = server.machine.syncs  # of these one may have begun before
        until("it has synced twice", lambda: server.machine.syncs > seen + 1 or touch(backend))
        tasks += parked(backend, MANY)
        token = next_token(backend)

        server.cut_power()
        server.start()

        kept = left(backend)
        lost = len(tasks) - len(kept)
        record_property("lost", f"redis, appendfsync everysec: {lost} of the last {MANY}")
        assert kept == tasks[: len(kept)]
        assert len(kept) >= MANY
        assert holders(backend) == ["holder"]
        assert running(backend.enter(claim("after", key="a third"))).token > token


def touch(backend: LockBackend) -> bool:
    """Write something, for a server that has nothing new does not sync; false."""
    running(backend.enter(claim("touch", key="touched")))
    return False


@pytest.mark.server("redis")
@pytest.mark.parametrize(
    "options", [log("no"), ("--save", "3600 1000"), ()], ids=["no sync", "snapshots", "memory"]
)
def test_a_redis_that_does_not_sync_may_have_nothing_and_its_tokens_grow_all_the_same(
    options: tuple[str, ...],
) -> None:
    with redis_with(*options) as (server, backend):
        parked(backend)
        token = next_token(backend)

        server.cut_power()
        server.start()

        assert (holders(backend), left(backend)) == ([], [])
        assert running(backend.enter(claim("second"))).token > token


@pytest.mark.parametrize(("synchronous", "loses"), [("", False), ("NORMAL", True)])
def test_sqlite_has_all_that_it_has_acknowledged_for_it_waits_for_the_disk(
    tmp_path: Path, synchronous: str, loses: bool, record_property: Record
) -> None:
    machine = Machine(tmp_path)
    url = f"sqlite:///{machine.disk / 'locks.db'}"
    command = [sys.executable, "-m", "tests.services.parker", url, *filter(None, [synchronous])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=machine.env, text=True) as parker:
        assert parker.stdout is not None
        acknowledged = [line.strip() for line in islice(parker.stdout, MANY)]
        parker.kill()
        acknowledged += [line.strip() for line in parker.stdout]

    machine.forget()

    with opened(url) as backend:
        kept = left(backend)
        lost = set(acknowledged) - set(kept)
        record_property("lost", f"sqlite, {synchronous or 'as it is'}: {len(lost)} of {MANY}")
        assert bool(lost) is loses
        if not loses:
            (holder,) = backend.peek("key").holders
            assert next_token(backend) > holder.token


@pytest.mark.server("zookeeper")
def test_a_zookeeper_has_all_that_it_has_acknowledged() -> None:
    with ZooKeeperOnMachine() as server, opened(server.url) as backend:
        # Without its first snapshot, which it does not sync, it would not start
        server.machine.settle()
        running(backend.enter(claim("holder")))
        tasks, token = parked(backend), next_token(backend)

        server.cut_power()
        server.start()

        until("it is back", lambda: answers(backend))
        assert left(backend) == tasks
        assert running(backend.enter(claim("after", key="a third"))).token > token


def answers(backend: LockBackend) -> bool:
    with suppress(BackendUnavailable):
        backend.peek("key")
        return True
    return False


@pytest.mark.server("etcd")
def test_an_etcd_syncs_its_log_for_each_message_that_it_acknowledges() -> None:
    # It makes its system calls itself, so what it says of them is all there is
    with EtcdServer("--unsafe-no-fsync=false") as server, opened(server.url) as backend:
        running(backend.enter(claim("holder")))
        for number in range(10):
            before = server.syncs()
            parked(backend, number, 1)
            assert server.syncs() > before
