"""What the doctor finds in a RabbitMQ, and in what Celery asks of it."""

# mypy: allow-untyped-calls

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from amqp.exceptions import NotFound
from kombu.connection import Connection
from kombu.entity import Exchange, Queue

from celery_dlock.ops.doctor import broker
from celery_dlock.ops.doctor.broker import RABBITMQ, RabbitMQ
from celery_dlock.ops.doctor.examine import examine
from celery_dlock.ops.doctor.finding import Case, Finding, judged
from celery_dlock.ops.doctor.tasks import Locked
from celery_dlock.runtime import runtime
from tests.inspection.patients import bad, found, in_memory, over, patient
from tests.services.rabbitmq import RabbitMQServer

pytestmark = pytest.mark.server("rabbitmq")


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is there may be slow."""
    monkeypatch.setattr(broker, "BROKER_TIMEOUT", 60)


LATE = {"rabbitmq-consumer-timeout": "unknown"}


@pytest.mark.parametrize(
    ("conf", "finding"),
    [
        ({}, {}),
        ({"broker_transport_options": {}}, {"rabbitmq-confirms": "weak"}),
        ({"task_default_delivery_mode": "transient"}, {"rabbitmq-transient": "broken"}),
        (
            {"task_queues": [Queue("q", Exchange("q", delivery_mode=1))]},
            {"rabbitmq-transient": "broken"},
        ),
        (
            {"task_queues": [Queue("lost", Exchange("q"), durable=False)]},
            {"rabbitmq-queue": "broken"},
        ),
        (
            {"task_queues": [Queue("q", Exchange("q"), auto_delete=True)]},
            {"rabbitmq-queue": "broken"},
        ),
        ({"task_queues": [Queue("q", Exchange("q"), no_ack=True)]}, {"rabbitmq-queue": "broken"}),
        (
            {"task_queues": [Queue("q", Exchange("q"), exclusive=True)]},
            {"rabbitmq-queue": "broken"},
        ),
        ({"task": {"time_limit": 7200}}, LATE),
        ({"task": {"default_retry_delay": 7200}}, LATE),
    ],
)
def test_a_rabbitmq_that_may_lose_or_repeat_messages_is_found(
    rabbitmq_server: RabbitMQServer,
    tmp_path: Path,
    conf: dict[str, Any],
    finding: dict[str, str],
) -> None:
    sound = {**in_memory(), **over(rabbitmq_server.url, confirm_publish=True)}

    assert found(tmp_path, **{**sound, **conf}) == {"memory-one-process": "weak", **finding}


QUORUM = {"x-queue-type": "quorum"}


def quorum(kind: str = "topic", **more: Any) -> Queue:
    return Queue("q", Exchange("q", kind), "q", queue_arguments={**QUORUM, **more})


LONG = {"default_retry_delay": 7200}
CLASSIC = {"broker_native_delayed_delivery_queue_type": "classic"}
DIRECT = {"rabbitmq-direct": "weak"}


@pytest.mark.parametrize(
    ("queues", "task", "conf", "delays", "finding"),
    [
        # A countdown that waits in a worker over quorum queues
        ([quorum()], LONG, {}, True, {}),
        ([quorum("direct")], {}, {}, True, DIRECT),
        ([quorum(), Queue("other", Exchange("other"), "other")], LONG, {}, True, DIRECT | LATE),
        # One that may be lost on its way
        ([quorum()], {}, CLASSIC, True, {"rabbitmq-delay-queues": "weak"}),
        ([Queue("q", Exchange("q"))], {}, CLASSIC, True, {}),
        # One that nobody would take
        ([quorum()], {}, {}, False, {"rabbitmq-no-delay": "weak"}),
        ([quorum("direct")], {}, {}, False, DIRECT),
        ([Queue("q", Exchange("q"))], {}, {}, False, {}),
    ],
)
def test_countdowns_over_quorum_queues_that_are_not_safe_are_found(
    rabbitmq_server: RabbitMQServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    queues: list[Queue],
    task: dict[str, Any],
    conf: dict[str, Any],
    delays: bool,
    finding: dict[str, str],
) -> None:
    if delays:
        with Connection(rabbitmq_server.url) as connection:
            Exchange(broker.DELAYS, "topic", channel=connection.default_channel).declare()
    else:
        monkeypatch.setattr(broker, "DELAYS", "an exchange that nobody has declared")
    conf = {**conf, **over(rabbitmq_server.url, confirm_publish=True), **in_memory()}
    names = found(tmp_path, task=task, task_queues=queues, **conf)

    assert {n: how for n, how in names.items() if n.startswith("rabbitmq-")} == finding


def findings_of(version: str, queues: list[Queue], check: str, tasks: Any = ()) -> list[Finding]:
    """What *check* finds in a server of this version."""
    server = SimpleNamespace(server_properties={"version": version})
    connection = SimpleNamespace(connect=lambda: server)
    rabbitmq = RabbitMQ(None, tasks, queues, connection)
    return list(judged({check: RABBITMQ[check]}, rabbitmq, "broker"))


@pytest.mark.parametrize(
    ("version", "arguments", "found"),
    [
        ("3.13.7", {}, ""),
        ("3.10.8", {"x-delivery-limit": 5}, "q: 5 deliveries"),
        ("4.0.1", {}, "q: 20 deliveries"),
        ("4.0.1", {"x-delivery-limit": -1}, ""),
        ("4.0.1", {"x-dead-letter-exchange": "dead"}, ""),
        ("", {}, ""),
    ],
)
def test_a_queue_that_gives_messages_up_is_found(
    version: str, arguments: dict[str, Any], found: str
) -> None:
    queues = [quorum(**arguments), Queue("classic", Exchange("classic"))]

    findings = findings_of(version, queues, "rabbitmq-delivery-limit")

    assert [finding.found.split(",")[0] for finding in findings] == ([found] if found else [])


def test_how_long_a_rabbitmq_waits_is_said(rabbitmq_server: RabbitMQServer, tmp_path: Path) -> None:
    conf = over(rabbitmq_server.url, confirm_publish=True)
    with patient(tmp_path, {"time_limit": 7200}, **in_memory(), **conf) as app:
        (finding,) = (each for each in examine(app) if each.where.startswith("broker"))

    assert "charge may run or wait for 7200 s, and a server allows 1800 s unless" in finding.found


@pytest.mark.parametrize(
    ("version", "milliseconds", "severity", "words"),
    [
        ("3.12.0", 60_000, "weak", "allows 60 s, charge may run or wait for 7200"),
        ("4.0.1", 10**8, None, ""),
        ("3.11.28", 10**8, "unknown", "a server allows 1800 s unless"),
        ("", 10**8, "unknown", "a server allows 1800 s unless"),
    ],
)
def test_a_queue_of_its_own_patience_counts_where_the_server_heeds_it(
    tmp_path: Path, version: str, milliseconds: int, severity: str | None, words: str
) -> None:
    queues = [Queue("q", queue_arguments={"x-consumer-timeout": milliseconds})]
    with patient(tmp_path, {"time_limit": 7200}, **in_memory()) as app:
        here = runtime(app)
        tasks = Locked.all_of(Case(app, here.settings, time.time))
        findings = findings_of(version, queues, "rabbitmq-consumer-timeout", tasks)

    assert [finding.severity for finding in findings] == ([severity] if severity else [])
    assert all(words in finding.found for finding in findings)


def test_the_queues_for_woken_messages_are_declared_or_why_they_cannot_be_is_found(
    rabbitmq_server: RabbitMQServer, tmp_path: Path
) -> None:
    queues = [Queue(name, Exchange(name), name) for name in ("free", "taken", "amq.reserved")]
    conf = over(rabbitmq_server.url, confirm_publish=True)
    with Connection(rabbitmq_server.url) as connection:
        channel = connection.default_channel
        channel.queue_declare("taken.woken", durable=False, auto_delete=False)
        with patient(tmp_path, task_queues=queues, **in_memory(), **conf) as app:
            read = examine(app, read_only=True)
            with pytest.raises(NotFound), connection.channel() as own:
                own.queue_declare("free.woken", passive=True)
            (finding,) = (each for each in examine(app) if each not in read)
        channel.queue_declare("free.woken", passive=True)

    assert (finding.check, finding.severity) == ("broker-woken-queue", "weak")
    taken, reserved = finding.found.split("; ")
    assert taken.startswith("taken.woken beside taken cannot be declared: ")
    assert "inequivalent arg 'durable'" in taken
    assert "ACCESS_REFUSED" in reserved
    assert "permission to configure" in finding.fix


def test_a_rabbitmq_that_lets_nobody_in_is_no_error(
    rabbitmq_server: RabbitMQServer, tmp_path: Path
) -> None:
    url = rabbitmq_server.url.replace("guest:guest", "shop:hunter2")

    with patient(tmp_path, **in_memory(), **over(url)) as app:
        findings = [finding for finding in examine(app) if finding.where.startswith("broker")]

    assert bad(findings) == {"no-answer": "unknown", "rabbitmq-confirms": "weak"}
    assert "hunter2" not in str(findings)
