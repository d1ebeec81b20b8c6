"""Over RabbitMQ's quorum queues a countdown is RabbitMQ's to wait for, in whole seconds, and what
comes back has gone another way: it is the same message all the same, in the same queue.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery.result import AsyncResult
from kombu.entity import Exchange, Queue

from tests.services.brokers import close, kept_in_sqlite, left, over_quorum_queues
from tests.services.lab import Lab
from tests.services.rabbitmq import RabbitMQServer
from tests.services.turns import done, held, nothing_is_left, numbers, parked
from tests.services.until import until
from tests.services.worker import Worker

pytestmark = pytest.mark.server("rabbitmq")


def make(folder: Path, server: RabbitMQServer, policy: str, *queues: str, **conf: Any) -> Lab:
    celery = {**over_quorum_queues(server.url, *queues), **kept_in_sqlite(folder), **conf}
    return Lab(folder, {"celery": celery, "lock": {"policy": policy}, "task": {"acks_late": True}})


@pytest.fixture(scope="module")
def tenant() -> str:
    """A queue beside the default one."""
    return f"tenant-{uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def lab(
    rabbitmq_server: RabbitMQServer, tenant: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lab]:
    """For the tests of how messages find back.

    Who is refused stays away for three seconds: that takes RabbitMQ two of the queues that wait,
    one after the other, in which it would see a circle as it does it again.
    """
    lab = make(tmp_path_factory.mktemp("tenants"), rabbitmq_server, "in three seconds", tenant)
    yield lab
    close(lab.app)


@pytest.fixture(scope="module")
def worker(lab: Lab) -> Iterator[Worker]:
    """One for all of them, with slots for who holds a key and who is refused."""
    with lab.worker("threads", concurrency=4) as worker:
        yield worker


def refused(result: AsyncResult, worker: Worker, times: int = 1) -> None:
    told = f"[{result.id}] was rescheduled"
    until(f"it is refused {times} times", lambda: worker.log.count(told) >= times)


def ways(lab: Lab, order: str) -> list[tuple[str, bool]]:
    """By which key each run of task 1 came, and whether RabbitMQ had waited for it."""
    keys = [entry["way"] for entry in lab.journal.read("start", order=order, number=1)]
    return [(key[56:], True) if key.startswith("0.0.") else (key, False) for key in keys]


def test_who_is_refused_for_the_first_time_comes_back(
    rabbitmq_server: RabbitMQServer, tmp_path: Path
) -> None:
    # Given a policy, the default one, whose first countdown is below a second
    lab = make(tmp_path, rabbitmq_server, "reschedule by up to a minute")
    with lab.worker("threads", concurrency=3) as worker:
        held(lab, "42")
        # When tasks are refused
        sent = [lab.app.tasks["apply"].delay("42", number) for number in range(1, 5)]
        for result in sent:
            refused(result, worker)
        lab.go("42")
        assert done(sent) == [1, 2, 3, 4]
        assert sorted(numbers(lab, "42")) == [0, 1, 2, 3, 4]
        nothing_is_left(lab, "42")
        worker.stop()
    assert left(lab.app) == 0
    close(lab.app)


def test_who_is_refused_comes_back_into_its_queue(lab: Lab, worker: Worker, tenant: str) -> None:
    held(lab, "stays")
    result = lab.app.tasks["apply"].apply_async(("stays", 1), queue=tenant)
    refused(result, worker, times=2)  # also when it comes from RabbitMQ's wait
    lab.go("stays")

    assert done([result]) == [1]
    assert ways(lab, "stays") == [(tenant, True)]


def test_who_waited_in_the_store_comes_back_into_it(lab: Lab, worker: Worker, tenant: str) -> None:
    held(lab, "parks")
    see = lab.app.tasks["see"]
    sent = [see.apply_async(("parks",), queue=tenant, countdown=n) for n in (0, 1)]
    parked(lab, "parks", 2)
    lab.go("parks")

    done(sent)
    saw = lab.journal.read("saw", order="parks")
    keys = [entry["message"]["routing_key"] for entry in saw]
    assert [key.rpartition(".")[2] for key in keys] == [tenant, tenant]


@pytest.mark.parametrize(("again", "waited"), [(0.5, False), (1.5, True)])
def test_who_retries_comes_back_into_it(
    lab: Lab, worker: Worker, tenant: str, again: float, waited: bool
) -> None:
    # One that comes before its first attempt has released the key is put off: then once more
    for attempt in range(10):
        order = f"retries-{again}-{attempt}"
        result = lab.app.tasks["apply"].apply_async((order, 1), {"again": again}, queue=tenant)
        assert done([result]) == [1]
        if f"[{result.id}] was rescheduled" not in worker.log:
            break
    assert ways(lab, order) == [(tenant, False), (tenant, waited)]


def test_who_came_by_an_exchange_comes_back_by_it(lab: Lab, worker: Worker, tenant: str) -> None:
    # Given an exchange that leads to the tenant's queue, of which no worker knows
    with lab.app.connection_for_write() as connection:
        exchange = Exchange(f"by-{tenant}", "topic", channel=connection.default_channel)
        exchange.declare()
        Queue(tenant, exchange, "order.#", channel=connection.default_channel).queue_bind()
    held(lab, "exchange")
    way = {"exchange": exchange.name, "routing_key": "order.eu"}
    result = lab.app.tasks["apply"].apply_async(("exchange", 1), **way)
    refused(result, worker, times=2)
    lab.go("exchange")

    assert done([result]) == [1]
    assert ways(lab, "exchange") == [("order.eu", False)]  # so a worker has waited for it
