"""A message that takes its place where it is published is the one that Celery would have sent."""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from celery import Task, signals
from kombu.entity import Exchange
from kombu.entity import Queue as BrokerQueue

from celery_dlock import LockedTask, Queue, lock
from celery_dlock.core.events import Parked
from tests.services.desk import Desk

KEY = "order:42"

OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "links": {},
    "properties": {"priority": 3, "reply_to": "me", "delivery_mode": 1},
    "headers": {"headers": {"tenant": "blue"}, "shadow": "pay"},
    "limits": {"time_limit": 20, "soft_time_limit": 10, "ignore_result": True},
    "an end": {"expires": datetime(2100, 1, 1, tzinfo=UTC)},
    "stamps": {"stamped_headers": ["tenant"], "tenant": "blue"},
    "yaml": {"serializer": "yaml"},
    "pickle": {"serializer": "pickle"},
}


@pytest.fixture
def charge(desk: Desk) -> LockedTask:
    desk.app.conf.accept_content = ["json", "yaml", "pickle"]

    @desk.locked("order:{order}", name="charge", on_contention=Queue(ordered="publish"))
    def charge(order: str, before: int = 0) -> int:
        return before + 1

    return charge


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("contended", [False, True])
def test_it_is_the_same(desk: Desk, charge: LockedTask, name: str, contended: bool) -> None:
    options = {**OPTIONS[name], "task_id": "one"}
    if name == "links":
        options |= {"link": charge.s(), "link_error": [charge.s("0"), charge.s("1")]}
    # Given the message as Celery publishes it by itself
    Task.apply_async(charge, ("42",), **options)
    usual = desk.take()
    # And the same with a place in the queue
    if contended:
        with lock(KEY, app=desk.app, timeout=0):
            charge.apply_async(("42",), **options)
            assert desk.take() is None
    else:
        charge.apply_async(("42",), **options)
    ours = desk.take()

    # Then there is no difference but our own header
    assert usual is not None
    assert ours is not None
    assert ours.headers.pop("dlock")["key"] == KEY
    assert ours.headers == usual.headers
    assert (ours.body, ours.content_type, ours.content_encoding) == (
        usual.body,
        usual.content_type,
        usual.content_encoding,
    )
    # Expiration is how long a broker keeps it; it waits in the store, and has "expires" itself
    of_the_way = ("delivery_tag", "delivery_info", "expiration")
    assert {k: v for k, v in ours.properties.items() if k not in of_the_way} == {
        k: v for k, v in usual.properties.items() if k not in of_the_way
    }


@pytest.mark.parametrize(
    "where",
    [
        {"queue": "slow"},
        {"exchange": "orders", "routing_key": "order.paid"},
        {"exchange": Exchange("orders", "topic"), "routing_key": "order.paid"},
    ],
    ids=["a queue", "a topic", "a topic, as an object"],
)
def test_it_goes_where_it_is_sent(desk: Desk, charge: LockedTask, where: dict[str, Any]) -> None:
    topic = Exchange("orders", "topic")
    queue = BrokerQueue("slow", topic, routing_key="order.*")
    desk.app.amqp.queues.add(queue)
    queue(desk.channel).declare()

    result = charge.apply_async(("42",), **where)

    desk.deliver("slow")
    assert result.get() == 1


def test_its_queue_is_there_before_it_is_woken(desk: Desk, charge: LockedTask) -> None:
    with lock(KEY, app=desk.app, timeout=0):
        charge.apply_async(("42",), queue="never-seen")
        assert desk.channel._has_queue("never-seen")


@contextmanager
def received_by(signal: Any, receiver: Callable[..., None]) -> Iterator[None]:
    signal.connect(receiver, weak=False)
    try:
        yield
    finally:
        signal.disconnect(receiver)


def test_signals_are_sent_once_and_where_it_is_published(desk: Desk, charge: LockedTask) -> None:
    seen: list[tuple[str, str]] = []

    def before(headers: dict[str, Any], **_: Any) -> None:
        seen.append(("before", headers["id"]))
        headers["tenant"] = "blue"

    def after(headers: dict[str, Any], **_: Any) -> None:
        seen.append(("after", headers["id"]))

    with (
        received_by(signals.before_task_publish, before),
        received_by(signals.after_task_publish, after),
        lock(KEY, app=desk.app, timeout=0),
    ):
        result = charge.delay("42")
        assert seen == [("before", result.id), ("after", result.id)]
    # And it is not published a second time when it is woken
    message = desk.take()
    assert message is not None
    assert message.headers["tenant"] == "blue", "a receiver has its say"
    assert seen == [("before", result.id), ("after", result.id)]


def test_the_event_of_the_sending_is_celerys(desk: Desk, charge: LockedTask) -> None:
    desk.app.conf.task_send_sent_event = True
    seen = BrokerQueue("seen", Exchange("celeryev", "topic"), routing_key="#")
    seen(desk.channel).declare()

    with lock(KEY, app=desk.app, timeout=0):
        result = charge.delay("42")
        assert desk.size() == 0

    event = desk.take("seen")
    assert event is not None
    assert (event.payload["type"], event.payload["uuid"]) == ("task-sent", result.id)
    assert event.payload["queue"] == "celery"
    assert desk.take("seen") is None


def test_message_protocol_1_is_published_as_usual(desk: Desk, charge: LockedTask) -> None:
    desk.app.conf.task_protocol = 1
    with lock(KEY, app=desk.app, timeout=0):
        charge.delay("42")
        assert desk.size() == 1
    assert desk.happened(Parked) == []
