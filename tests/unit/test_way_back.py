"""What is published again over quorum queues finds back, or the worker waits for it."""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from kombu.entity import Exchange, Queue

from celery_dlock.messages.way_back import lead_back

WAITED = "0." * 26 + "1.0."


def quorum(name: str, kind: str = "topic", key: str | None = None) -> Queue:
    arguments = {"x-queue-type": "quorum"}
    return Queue(name, Exchange(name, kind), key or name, queue_arguments=arguments)


@pytest.fixture
def app() -> Iterator[Celery]:
    """Nobody is connected to."""
    app = Celery("shop", broker="amqp://nowhere", set_as_current=False)
    app.conf.task_queues = [
        quorum("celery"),
        quorum("tenant"),
        quorum("orders", key="order.*.#"),
        quorum("eu.tenant2"),
        quorum("tenant2"),
        quorum("straight", "direct"),
    ]
    yield app
    app.close()


def led_back(app: Celery, **options: Any) -> dict[str, Any]:
    lead_back(app, options)
    return {name: value for name, value in options.items() if value not in (None, {})}


def due_in(options: dict[str, Any]) -> float:
    eta = datetime.fromisoformat(options["headers"]["eta"])
    return (eta - datetime.now(UTC)).total_seconds()


@pytest.mark.parametrize(
    ("exchange", "came_by", "key"),
    [
        ("tenant", "tenant", "tenant"),
        ("orders", "order.eu.42", "order.eu.42"),
        ("celery_delayed_0", f"{WAITED}tenant", "tenant"),
        ("celery_delayed_delivery", f"{WAITED}order.eu", "order.eu"),
    ],
)
def test_rabbitmq_is_told_the_key_that_the_message_came_by(
    app: Celery, exchange: str, came_by: str, key: str
) -> None:
    options = led_back(app, exchange=exchange, routing_key=came_by, countdown=2.5)

    queue = options.pop("queue")
    assert (queue.routing_key, queue.exchange.type) == (key, "topic")
    assert options == {"countdown": 2.5}


@pytest.mark.parametrize(
    ("exchange", "key", "why"),
    [
        ("straight", "straight", "direct"),
        ("theirs", "order.eu", "another exchange than the queue's that is known by this key"),
        ("orders", "nobody's", "nothing known is bound by it"),
        ("orders", "order", "a word too few"),
        ("eu.tenant2", "eu.tenant2", "tenant2 would get a copy"),
        ("tenant", "", "no key"),
    ],
)
def test_where_rabbitmq_would_not_find_back_the_worker_waits(
    app: Celery, exchange: str, key: str, why: str
) -> None:
    options = led_back(app, exchange=exchange, routing_key=key, countdown=20)

    assert 19 < due_in(options) <= 20
    del options["headers"]
    way = {"exchange": exchange, "routing_key": key}
    assert options == {name: value for name, value in way.items() if value is not None}, why


@pytest.mark.parametrize(
    "way", [{"queue": "tenant"}, {"exchange": "tenant", "routing_key": "tenant"}]
)
def test_for_less_than_a_second_the_worker_waits(app: Celery, way: dict[str, str]) -> None:
    options = led_back(app, **way, headers={"tenant": "blue"}, countdown=0.7)

    assert 0 < due_in(options) <= 0.7
    assert options.pop("headers").keys() == {"tenant", "eta"}
    assert options == way


def test_a_date_is_as_good_as_a_countdown(app: Celery) -> None:
    soon, later = (datetime.now(UTC) + timedelta(seconds=n) for n in (0.7, 100))

    assert 0 < due_in(led_back(app, queue="tenant", eta=soon)) <= 0.7
    assert 99 < led_back(app, queue="tenant", eta=later.isoformat())["countdown"] <= 100


def test_what_is_due_is_left_alone(app: Celery) -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    for due in ({}, {"countdown": 0}, {"countdown": -1}, {"eta": past}):
        options = {"exchange": "tenant", "routing_key": "tenant", "headers": {"eta": "x"}, **due}
        before = dict(options)
        lead_back(app, options)
        assert options == before


def test_earlier_waits_leave_no_trace_for_rabbitmq_to_see_a_circle_in(app: Celery) -> None:
    headers = {"x-death": [{}], "x-first-death-queue": "q", "x-last-death-reason": "r", "x-mine": 1}

    assert led_back(app, queue="tenant", headers=headers, countdown=2)["headers"] == {"x-mine": 1}


@pytest.mark.parametrize(
    "conf", [{"broker_url": "redis://nowhere"}, {"task_queues": [Queue("tenant")]}]
)
def test_without_quorum_queues_all_is_left_to_celery(app: Celery, conf: dict[str, Any]) -> None:
    app.conf.update(conf)
    options = {"exchange": "tenant", "routing_key": "tenant", "countdown": 0.7}
    before = dict(options)

    lead_back(app, options)

    assert options == before
