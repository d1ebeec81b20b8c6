"""Which queue stands beside which, and for which message it is known."""

# mypy: allow-untyped-calls

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from kombu.common import Broadcast
from kombu.entity import Exchange, Queue, binding

from celery_dlock.messages.headers import HISTORY
from celery_dlock.messages.woken_queues import WokenQueues, lead_home

ORDERS = Exchange("orders", type="direct")
TOPICS = Exchange("topics", type="topic")


def queues(*known: Queue, **conf: Any) -> WokenQueues:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(task_queues=known or None, **conf)
    return WokenQueues(app)


def name_of(queue: Any) -> str | None:
    return None if queue is None else str(queue.name)


def test_it_is_declared_like_the_one_that_it_is_beside() -> None:
    home = Queue(
        "paid",
        ORDERS,
        "paid",
        queue_arguments={"x-queue-type": "quorum", "x-dead-letter-exchange": "dead"},
        consumer_arguments={"x-priority": 3},
        durable=True,
        expires=60.0,
        message_ttl=5.0,
        max_length=10,
        max_length_bytes=1000,
        max_priority=7,
    )

    beside = queues(home).beside(home)

    assert (beside.name, beside.routing_key, beside.exchange.name) == ("paid.woken",) * 2 + ("",)
    own = {"name", "exchange", "routing_key"}
    assert {n: v for n, v in beside.as_dict().items() if n not in own} == {
        n: v for n, v in home.as_dict().items() if n not in own
    }
    assert (home.name, home.exchange.name) == ("paid", "orders")


def test_one_that_is_configured_is_taken_as_it_is() -> None:
    own = Queue("paid.woken", ORDERS, "woken", durable=False)
    home = Queue("paid", ORDERS, "paid")
    for missing in (True, False):
        assert queues(home, own, task_create_missing_queues=missing).beside(home) is own


@pytest.mark.parametrize(
    ("queue", "name"),
    [
        ("celery", "celery.woken"),
        ("orders.fifo", "orders.woken.fifo"),
        ("celery.woken", None),
        ("orders.woken.fifo", None),
    ],
)
def test_its_name(queue: str, name: str | None) -> None:
    found = queues()
    assert name_of(found.beside(Queue(queue, ORDERS, queue))) == name
    assert found.why_not(Queue(queue, ORDERS, queue)) is None


@pytest.mark.parametrize(
    ("home", "reason"),
    [
        (Queue("own", ORDERS, "own", exclusive=True), "deleted with its worker"),
        (Queue("own", ORDERS, "own", auto_delete=True), "deleted with its worker"),
        (Queue("own", Exchange("all", type="fanout")), "queue of its own"),
        (Broadcast("all"), "queue of its own"),
        (Queue("own", ORDERS, "own", no_declare=True), "task_queues has no own.woken"),
    ],
)
def test_none_is_beside_what_others_cannot_declare(home: Queue, reason: str) -> None:
    found = queues(home)
    assert found.beside(home) is None
    assert reason in (found.why_not(home) or "")


def test_none_is_made_where_queues_are_not_to_be_made() -> None:
    home = Queue("paid", ORDERS, "paid")
    found = queues(home, task_create_missing_queues=False)
    assert found.beside(home) is None
    assert "task_create_missing_queues is off" in (found.why_not(home) or "")
    assert found.of_message("", "elsewhere") is None


def test_none_is_made_where_a_queue_needs_an_exchange() -> None:
    home, own = Queue("paid", ORDERS, "paid"), Queue("sent.woken", ORDERS, "sent.woken")
    found = queues(home, own, broker_transport="tests.services.pubsub:Transport")
    assert found.beside(home) is None
    assert "needs an exchange" in (found.why_not(home) or "")
    assert found.beside(Queue("sent", ORDERS, "sent")) is own


@pytest.mark.parametrize(
    ("exchange", "key", "name"),
    [
        ("", "paid", "paid.woken"),
        ("", "never heard of", "never heard of.woken"),
        ("", "", None),
        ("orders", "paid", "paid.woken"),
        ("orders", "sent", "sent.woken"),
        ("orders", "twice", None),
        ("orders", "nobody", None),
        ("topics", "shop.eu.paid", "eu.woken"),
        ("topics", "shop.us.paid", None),
        ("topics", "all.of.it", None),
        ("fans", "", None),
        ("mixed", "one", None),
        ("bound", "one", None),
        ("unknown", "paid", None),
        ("celery_delayed_delivery", "0." * 28 + "shop.eu.paid", "eu.woken"),
        ("celery_delayed_delivery", "0." * 28 + "paid", None),
    ],
)
def test_the_only_queue_of_a_message_is_known(exchange: str, key: str, name: str | None) -> None:
    found = queues(
        Queue("paid", ORDERS, "paid"),
        Queue("sent", ORDERS, "sent"),
        Queue("twice-a", ORDERS, "twice"),
        Queue("twice-b", ORDERS, "twice"),
        Queue("eu", TOPICS, "shop.eu.#"),
        Queue("all-a", TOPICS, "all.#"),
        Queue("all-b", TOPICS, "#.it"),
        Queue("fan", Exchange("fans", type="fanout")),
        Queue("mixed-a", Exchange("mixed", type="direct"), "one"),
        Queue("mixed-b", bindings=[binding(Exchange("mixed"), "one")]),
        Queue("bound", bindings=[binding(Exchange("bound"), "one")]),
    )
    assert name_of(found.of_message(exchange, key)) == name


class Refusing:
    """A connection whose channels are refused, with these errors, one after the other."""

    connection_errors = ()
    transport = SimpleNamespace(
        driver_type="amqp", recoverable_connection_errors=(ConnectionResetError,)
    )

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    def channel(self) -> Any:
        raise self.errors.pop(0)


def test_a_refusing_broker_is_said_and_asked_once(caplog: pytest.LogCaptureFixture) -> None:
    found = queues()
    beside = found.beside(Queue("celery", ORDERS, "celery"))
    connection = Refusing(ConnectionResetError("gone"), PermissionError("403"), OSError("403"))

    assert not found.is_there(beside, connection, "celery"), "nobody could say"
    assert caplog.text == ""
    assert not found.is_there(beside, connection, "celery")
    assert not found.is_there(beside, connection, "celery")
    assert len(connection.errors) == 1
    assert caplog.text.count("celery.woken") == 1


def test_what_it_carries_leads_it_home() -> None:
    info = {"exchange": "", "routing_key": "paid.woken", "delivery_tag": 7}
    home = {"exchange": "orders", "routing_key": "paid"}
    for header, expected in (
        ({**home, "key": "order:1"}, {**info, **home}),
        ({"key": "order:1"}, info),
        ({"exchange": 1, "routing_key": "paid"}, info),
        ("nonsense", info),
    ):
        message = SimpleNamespace(headers={HISTORY: header}, delivery_info=info)
        lead_home(message)
        assert message.delivery_info == expected
    message = SimpleNamespace(headers=None, delivery_info=info)
    lead_home(message)
    assert message.delivery_info is info
