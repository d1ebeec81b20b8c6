"""What the doctor finds in a RabbitMQ, and in what Celery asks of it."""

# mypy: allow-untyped-calls

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from kombu.entity import Exchange, Queue

from celery_dlock.inspection.doctor import broker, rabbitmq
from celery_dlock.inspection.doctor.case import Case
from celery_dlock.inspection.doctor.examine import examine
from celery_dlock.inspection.doctor.locked import Locked
from celery_dlock.tasks.runtime import runtime
from tests.inspection.patients import bad, found, in_memory, over, patient
from tests.services.rabbitmq import RabbitMQServer

pytestmark = pytest.mark.server("rabbitmq")


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is there may be slow."""
    monkeypatch.setattr(broker, "PATIENCE", 60)


@pytest.mark.parametrize(
    ("options", "conf", "task", "finding"),
    [
        ({"confirm_publish": True}, {}, {}, {}),
        ({}, {}, {}, {"rabbitmq-confirms": "weak"}),
        (
            {"confirm_publish": True},
            {"task_default_delivery_mode": "transient"},
            {},
            {"rabbitmq-transient": "broken"},
        ),
        (
            {"confirm_publish": True},
            {"task_queues": [Queue("q", Exchange("q"), durable=False)]},
            {},
            {"rabbitmq-queue": "broken"},
        ),
        (
            {"confirm_publish": True},
            {"task_queues": [Queue("q", Exchange("q"), auto_delete=True)]},
            {},
            {"rabbitmq-queue": "broken"},
        ),
        (
            {"confirm_publish": True},
            {"task_queues": [Queue("q", Exchange("q", delivery_mode=1))]},
            {},
            {"rabbitmq-transient": "broken"},
        ),
        (
            {"confirm_publish": True},
            {"task_queues": [Queue("q", Exchange("q"), no_ack=True)]},
            {},
            {"rabbitmq-queue": "broken"},
        ),
        (
            {"confirm_publish": True},
            {"task_queues": [Queue("q", Exchange("q"), exclusive=True)]},
            {},
            {"rabbitmq-queue": "broken"},
        ),
        (
            {"confirm_publish": True},
            {},
            {"time_limit": 7200},
            {"rabbitmq-consumer-timeout": "unknown"},
        ),
        (
            {"confirm_publish": True},
            {},
            {"default_retry_delay": 7200},
            {"rabbitmq-consumer-timeout": "unknown"},
        ),
    ],
)
def test_a_rabbitmq_that_may_lose_or_repeat_messages_is_found(
    rabbitmq_server: RabbitMQServer,
    tmp_path: Path,
    options: dict[str, Any],
    conf: dict[str, Any],
    task: dict[str, Any],
    finding: dict[str, str],
) -> None:
    names = found(
        tmp_path, task=task, **in_memory(), **over(rabbitmq_server.url, **options), **conf
    )

    assert {n: how for n, how in names.items() if n != "memory-one-process"} == finding


def test_how_long_a_rabbitmq_waits_is_said(rabbitmq_server: RabbitMQServer, tmp_path: Path) -> None:
    conf = over(rabbitmq_server.url, confirm_publish=True)
    with patient(tmp_path, {"time_limit": 7200}, **in_memory(), **conf) as app:
        (finding,) = (each for each in examine(app) if each.where.startswith("broker"))

    assert "charge may run or wait for 7200 s, and a server allows 1800 s unless" in finding.found


@pytest.mark.parametrize(
    ("version", "milliseconds", "severity", "words"),
    [
        (
            "3.12.0",
            60_000,
            "weak",
            "allows 60 s, charge may run or wait for 7200",
        ),
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
        tasks = Locked.all_of(Case(app, here.settings, time.time), here.policy)
        findings = list(rabbitmq.patient(tasks, queues, version, "broker"))

    assert [finding.severity for finding in findings] == ([severity] if severity else [])
    assert all(words in finding.found for finding in findings)


def test_a_rabbitmq_that_lets_nobody_in_is_no_error(
    rabbitmq_server: RabbitMQServer, tmp_path: Path
) -> None:
    url = rabbitmq_server.url.replace("guest:guest", "shop:hunter2")

    with patient(tmp_path, **in_memory(), **over(url)) as app:
        findings = [finding for finding in examine(app) if finding.where.startswith("broker")]

    assert bad(findings) == {"no-answer": "unknown", "rabbitmq-confirms": "weak"}
    assert "hunter2" not in str(findings)
