"""What the doctor finds in the broker: whether it keeps messages, and how long it waits."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim, WaitMode
from celery_dlock.messages.envelope import ParkedMessage
from celery_dlock.ops.doctor import broker
from celery_dlock.ops.doctor.examine import examine
from celery_dlock.ops.doctor.finding import Case, broker_url, place_of
from celery_dlock.ops.doctor.redis import database
from celery_dlock.ops.doctor.tasks import Locked, examine_tasks
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
        broker = over(f"rediss://127.0.0.1:{port}/0?ssl_cert_reqs=CERT_REQUIRED")
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


class Missing(Exception):
    """What boto raises for a queue that is not there."""


class Sqs:
    """A connection, its channel and boto's client in one: *attributes* are those of its queues."""

    recoverable_connection_errors = ()
    exceptions = SimpleNamespace(QueueDoesNotExist=Missing)
    transport = SimpleNamespace(driver_type="sqs")

    def __init__(self, attributes: dict[str, str], *predefined: str) -> None:
        self.predefined_queues = {name: {"url": f"https://{name}"} for name in predefined}
        self._attributes = attributes

    def channel(self) -> Any:
        return nullcontext(self)

    def canonical_queue_name(self, name: str) -> str:
        return name.replace(".", "-")

    def sqs(self, queue: str) -> Sqs:
        return self

    def get_queue_url(self, *, QueueName: str) -> dict[str, str]:  # noqa: N803
        if QueueName not in self._attributes:
            raise Missing
        return {"QueueUrl": f"https://{QueueName}"}

    def get_queue_attributes(self, *, QueueUrl: str, AttributeNames: Any) -> Any:  # noqa: N803
        (name,) = AttributeNames
        return {"Attributes": {name: self._attributes[QueueUrl.removeprefix("https://")]}}


@pytest.mark.parametrize(
    ("attributes", "predefined", "told"),
    [
        ({"celery": "60"}, (), ""),
        ({}, (), ""),
        ({"celery": "30", "celery-woken": "60"}, (), "celery: VisibilityTimeout 30; "),
        ({"celery": "60", "celery-woken": "900"}, (), "celery.woken: VisibilityTimeout 900; "),
        ({"celery": "900"}, ("celery",), "celery: VisibilityTimeout 900; "),
    ],
)
def test_the_visibility_timeout_of_an_sqs_queue_counts_and_not_what_celery_is_told(
    tmp_path: Path, attributes: dict[str, str], predefined: tuple[str, ...], told: str
) -> None:
    sqs = Sqs(attributes, *predefined)
    with patient(tmp_path, **in_memory(), **over("sqs://h", visibility_timeout=60)) as app:
        here = runtime(app)
        case = Case(app, here.settings, time.time)
        findings = list(broker.examine_sqs(case, sqs, "broker sqs://h"))

    assert [finding.check for finding in findings] == ["sqs-visibility-timeout"] * bool(told)
    assert all(f.found == f"{told}visibility_timeout = 60" for f in findings)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqs://h", "the same as VisibilityTimeout"),
        ("redis://127.0.0.1:1", '= {"visibility_timeout": 14400}'),
    ],
)
def test_advice_fits_the_broker(tmp_path: Path, url: str, words: str) -> None:
    conf = {**over(url, visibility_timeout=60), "task_time_limit": None}
    with patient(tmp_path, {"default_retry_delay": 7200}, **in_memory(), **conf) as app:
        case = Case(app, runtime(app).settings, time.time)
        tasks = Locked.all_of(case)
        late = next(broker._delivered_again(case, tasks, "broker"))
        endless = next(f for f in examine_tasks(case, tasks) if f.check == "tasks-time-limit")

    assert late.check == "broker-visibility-timeout"
    assert words in late.fix
    assert endless.promise.endswith("Meanwhile the broker delivers its message again.")


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
