"""What the doctor finds in the broker: whether it keeps messages, and how long it waits."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim, WaitMode
from celery_dlock.messages.envelope import ParkedMessage
from celery_dlock.ops.doctor.examine import examine
from celery_dlock.ops.doctor.finding import broker_url, place_of
from celery_dlock.ops.doctor.redis import database
from celery_dlock.runtime import runtime
from celery_dlock.stores.base import LockBackend
from tests.inspection.patients import found, in_memory, over, patient
from tests.services.certificates import Authority
from tests.services.ports import free_ports
from tests.services.redis import RedisServer, speaking_tls
from tests.services.require import require

RESCHEDULED = {"lock_on_contention": "reschedule"}
RETRIES = {"autoretry_for": (OSError,), "retry_backoff_max": 4000}


@pytest.fixture(scope="module")
def redis_broker() -> Iterator[RedisServer]:
    """A server of which nothing is found."""
    require("redis")
    with RedisServer("--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


def over_redis(server: RedisServer, **options: Any) -> dict[str, Any]:
    return {**over(f"redis://127.0.0.1:{server.port}/7", **options), "dlock_url": server.url}


@pytest.mark.server("redis")
@pytest.mark.parametrize("task", [{}, RESCHEDULED])
def test_nothing_is_found_in_a_redis_that_keeps_messages(
    redis_broker: RedisServer, tmp_path: Path, task: dict[str, Any]
) -> None:
    assert found(tmp_path, task=task, **over_redis(redis_broker)) == {}


@pytest.mark.server("redis")
def test_a_redis_that_forgets_messages_is_found(
    redis_broker: RedisServer, redis_server: RedisServer, tmp_path: Path
) -> None:
    """The run's shared server keeps no log; the store is on another one."""
    url = f"redis://:hunter2@127.0.0.1:{redis_server.port}/7"
    with redis_server.client() as client:
        client.execute_command("ACL", "SETUSER", "shop", "on", ">hunter2", "~*", "+@all")
    conf = over(url.replace(":hunter2", "shop:hunter2"))
    try:
        with patient(tmp_path, dlock_url=redis_broker.url, **conf) as app:
            (finding,) = examine(app)
    finally:
        with redis_server.client() as client:
            client.execute_command("ACL", "DELUSER", "shop")

    assert (finding.check, finding.severity) == ("redis-aof", "weak")
    assert finding.where == f"broker redis://127.0.0.1:{redis_server.port}/7"
    assert "tasks that were sent never run" in finding.promise
    assert "hunter2" not in str(finding)


@pytest.mark.server("redis")
@pytest.mark.parametrize(
    ("policy", "where"), [("allkeys-lru", {"store", "broker"}), ("volatile-lru", {"store"})]
)
def test_an_evicting_redis_is_found(tmp_path: Path, policy: str, where: set[str]) -> None:
    """Messages never expire, and locks do."""
    keeps = ("--appendonly", "yes", "--appendfsync", "always")
    evicts = ("--maxmemory", "50mb", "--maxmemory-policy", policy)
    with RedisServer(*keeps, *evicts) as server, patient(tmp_path, **over_redis(server)) as app:
        findings = examine(app)

    assert {f.check for f in findings} == {"redis-eviction"}
    assert {f.where.split()[0] for f in findings} == where


@pytest.mark.server("redis")
def test_locks_in_the_brokers_database_are_found(redis_broker: RedisServer, tmp_path: Path) -> None:
    shared = {**over(redis_broker.url.removesuffix("/0")), "dlock_url": redis_broker.url}

    assert found(tmp_path, **shared) == {"broker-shared-database": "weak"}


@pytest.mark.server("redis")
def test_a_redis_that_speaks_tls_is_examined(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    trusts = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": str(authority.file)}
    with speaking_tls(authority, authority.signs("server")) as (_, port):
        broker = over(f"rediss://127.0.0.1:{port}/0")
        names = found(tmp_path, **in_memory(), **broker, broker_use_ssl=trusts)

    assert names == {"memory-one-process": "weak", "redis-aof": "weak"}


@pytest.mark.parametrize(
    ("broker", "store", "same"),
    [
        ("redis://h", "redis://:pw@h:6379/0", True),
        ("redis://h/1", "redis://h:6379/1", True),
        ("redis://h/1", "redis://h/0", False),
        ("redis://h:1", "redis://h", False),
        ("redis://h", "redlock://h:1,h:2,h:3/0", False),
        ("redis://h", "redlock://h:1,[::1]:2,h:3/0", False),
    ],
)
def test_two_urls_may_name_one_database(broker: str, store: str, same: bool) -> None:
    assert (database(broker) == database(store)) is same


def test_servers_are_told_without_their_login() -> None:
    assert place_of("redis+cluster://shop:pw@a:1,[::1]:2/0?x=y") == "a:1,[::1]:2/0"


UNLIMITED = {"task_time_limit": None}


def visible(seconds: int) -> dict[str, Any]:
    return {"broker_transport_options": {"visibility_timeout": seconds}}


@pytest.mark.server("redis")
@pytest.mark.parametrize(
    ("task", "conf", "finding"),
    [
        ({"time_limit": 4000}, {}, {"broker-visibility-timeout": "weak"}),
        ({"lock_max_hold": 4000}, UNLIMITED, {"broker-visibility-timeout": "weak"}),
        ({}, {**UNLIMITED, "dlock_max_hold": 4000}, {"broker-visibility-timeout": "weak"}),
        ({}, {"task_time_limit": 4000}, {"broker-visibility-timeout": "weak"}),
        ({"time_limit": 4000, "acks_late": False}, {}, {"tasks-acks-late": "weak"}),
        ({"default_retry_delay": 4000}, {}, {"broker-visibility-timeout": "weak"}),
        ({"time_limit": 3000}, {}, {}),
        ({**RETRIES, "retry_backoff": True}, {}, {"broker-visibility-timeout": "weak"}),
        (RETRIES, {}, {}),
        ({}, {"dlock_done_ttl": 600}, {"broker-done-ttl": "broken"}),
        ({}, {"dlock_done_ttl": 7200}, {}),
        ({}, visible(40_000), {}),
        ({}, {**visible(40_000), "dlock_done_ttl": 7200}, {"broker-done-ttl": "broken"}),
        ({"time_limit": 400}, visible(300), {"broker-visibility-timeout": "weak"}),
        ({"time_limit": 400}, visible(3601), {}),
    ],
)
def test_what_is_delivered_again_too_early_is_found(
    redis_broker: RedisServer,
    tmp_path: Path,
    task: dict[str, Any],
    conf: dict[str, Any],
    finding: dict[str, str],
) -> None:
    """A Redis takes a message back after an hour, if it is told nothing else."""
    conf = {**over_redis(redis_broker), **conf}

    assert found(tmp_path, task={**RESCHEDULED, **task}, **conf) == finding


def test_a_broker_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    (gone,) = free_ports(1)
    for url in (f"redis://:hunter2@127.0.0.1:{gone}", f"amqp://shop:hunter2@127.0.0.1:{gone}//"):
        with patient(tmp_path, **in_memory(), **over(url, confirm_publish=True)) as app:
            (finding,) = (f for f in examine(app) if f.where.startswith("broker"))

        assert (finding.check, finding.severity) == ("no-answer", "unknown")
        assert "hunter2" not in str(finding)


@pytest.mark.parametrize(
    ("broker", "task", "finding"),
    [
        (over("memory://"), {}, {"broker-memory": "weak"}),
        (over("sentinel://127.0.0.1:1", master_name="m"), {}, {"broker-unread": "unknown"}),
        (over("zookeeper://127.0.0.1:1"), {}, {"broker-unread": "unknown"}),
        ({}, RESCHEDULED, {"broker-filesystem": "weak"}),
        ({}, {}, {}),
    ],
)
def test_a_broker_without_a_server_to_ask_is_found(
    tmp_path: Path, broker: dict[str, Any], task: dict[str, Any], finding: dict[str, str]
) -> None:
    names = found(tmp_path, task=task, **in_memory(), **broker)

    assert {n: how for n, how in names.items() if n.startswith(("broker", "no-"))} == finding


@pytest.mark.parametrize(
    ("given", "first"),
    [
        (None, "amqp://"),
        ("redis://a/1", "redis://a/1"),
        ("amqp://a;amqp://b", "amqp://a"),
        (["amqp://a", "amqp://b"], "amqp://a"),
    ],
)
def test_of_several_brokers_the_first_is_examined(given: Any, first: str) -> None:
    app = Celery("patient", set_as_current=False)
    app.conf.broker_url = given

    assert broker_url(app.conf) == first


@pytest.mark.parametrize(
    ("conf", "told"),
    [
        ({}, None),
        ({"task_create_missing_queues": False}, "beside celery there is no queue: task_create_"),
        ({"task_create_missing_queues": False, "dlock_woken_queue": False}, None),
        ({"task_create_missing_queues": False, "task_queues": {"a": {}, "a.woken": {}}}, None),
        ({"task_queues": {"own": {"auto_delete": True}}}, None),
    ],
)
def test_a_queue_without_one_for_what_is_woken_is_found(
    tmp_path: Path, conf: dict[str, Any], told: str | None
) -> None:
    with patient(tmp_path, **in_memory(), **conf) as app:
        found = [f.found for f in examine(app) if f.check == "broker-woken-queue"]

    assert len(found) == (told is not None)
    assert all(each.startswith(str(told)) for each in found)


def test_a_message_of_another_broker_that_comes_next_is_found(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'locks.db'}"
    stored: dict[str, Any] = {"dlock_url": url, "worker_pool": "threads"}
    with patient(tmp_path, **stored) as app:
        before = {finding.check for finding in examine(app)}
        here = runtime(app)
        for task, broker in (("ours", here.wake.broker), ("theirs", "redis://elsewhere:6379/0")):
            park(here.backend, task, broker)
        findings = examine(app)

    (finding,) = [each for each in findings if each.check not in before]
    assert (finding.check, finding.severity) == ("broker-another", "weak")
    assert finding.found.startswith("theirs in the lock store, for redis://elsewhere:6379/0;")
    assert "dlock_broker = 'redis://elsewhere:6379/0'" in finding.fix


def park(backend: LockBackend, task: str, broker: str) -> None:
    """Have a message of *task* be called for a key of its own."""
    mine = Claim(f"key of {task}", f"{task}:0:0", "1", ttl=SECOND, wait=WaitMode.ENQUEUE)
    message = ParkedMessage(
        broker=broker,
        key="",
        task=mine.task,
        exchange="",
        routing_key="celery",
        content_type="application/json",
        content_encoding="utf-8",
        headers={},
        properties={},
        body=b"[]",
    )
    backend.enter(mine, message.encode({}))
