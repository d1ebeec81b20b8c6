"""A woken message that lay for hours where nobody looked, and was sent again meanwhile."""

# mypy: allow-untyped-calls

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from celery import Celery
from kombu.message import Message

from celery_dlock import LockedTask, lock
from celery_dlock.core.events import Dropped
from celery_dlock.delivery import taking
from celery_dlock.messages.woken_queues import tells_redelivery
from celery_dlock.runtime import runtime
from tests.services.desk import Desk
from tests.services.rabbitmq import RabbitMQServer
from tests.services.redelivery import deliver_again
from tests.services.redis import RedisServer

KEY = "order:42"


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setattr(taking, "tells_redelivery", lambda app: True)
    return []


@pytest.fixture
def charge(desk: Desk, ran: list[int]) -> LockedTask:
    @desk.locked("order:{order}", name="charge", on_contention="queue")
    def charge(order: str, number: int) -> None:
        ran.append(number)

    return charge


def woken(desk: Desk, charge: LockedTask) -> Message:
    """The message of a task as its turn has come."""
    charge.delay("42", 1)
    with lock(KEY, app=desk.app, timeout=0):
        desk.deliver()
    message = desk.take()
    assert message is not None
    return message


def left_over(desk: Desk, charge: LockedTask) -> Message:
    """The message of one that has run by another one since, which the store has forgotten."""
    message = woken(desk, charge)
    desk.run(message)
    runtime(desk.app).backend.replay(KEY, f"{message.headers['id']}:0:0")
    message.headers["dlock"]["called"] -= 3 * 3600
    message._state = "RECEIVED"
    return message


def test_a_message_that_lay_for_hours_and_was_sent_again_is_dropped(
    desk: Desk, charge: LockedTask, ran: list[int]
) -> None:
    desk.run(left_over(desk, charge))

    assert ran == [1]
    assert [event.reason for event in desk.happened(Dropped)] == ["done"]
    assert desk.holders(KEY) == []


def _young(message: Message) -> None:
    message.headers["dlock"]["called"] = time.time()


def _delivered_again(message: Message) -> None:
    message.delivery_info = {**message.delivery_info, "redelivered": True}


def _from_a_dead_letter_exchange(message: Message) -> None:
    message.headers["x-death"] = [{"queue": "celery", "reason": "rejected"}]


@pytest.mark.parametrize("how", [_young, _delivered_again, _from_a_dead_letter_exchange])
def test_one_that_may_have_begun_before_is_not(
    desk: Desk, charge: LockedTask, ran: list[int], how: Callable[[Message], None]
) -> None:
    message = left_over(desk, charge)
    how(message)
    desk.run(message)
    assert ran == [1, 1]


def test_one_whose_message_the_store_has_still_is_not(
    desk: Desk, charge: LockedTask, ran: list[int]
) -> None:
    message = woken(desk, charge)
    message.headers["dlock"]["called"] -= 3 * 3600
    desk.run(message)
    assert ran == [1]


def test_nor_over_a_broker_that_does_not_say_what_it_delivers_again(
    desk: Desk, charge: LockedTask, ran: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "tells_redelivery", tells_redelivery)
    desk.run(left_over(desk, charge))
    assert ran == [1, 1]


@pytest.mark.server("redis")
def test_redis_says_what_it_delivers_again(redis_server: RedisServer) -> None:
    app = Celery("shop", broker=f"redis://127.0.0.1:{redis_server.port}/7", set_as_current=False)
    assert tells_redelivery(app)
    with app.connection_for_write() as connection:
        queue = connection.SimpleQueue("celery")
        queue.put("text")
        first = queue.get(timeout=10)
        assert deliver_again(app) == 1
        again = queue.get(timeout=10)
        again.ack()
        assert not first.delivery_info.get("redelivered")
        assert again.delivery_info["redelivered"]


@pytest.mark.server("rabbitmq")
def test_rabbitmq_says_what_it_delivers_again(rabbitmq_server: RabbitMQServer) -> None:
    app = Celery("shop", broker=rabbitmq_server.url, set_as_current=False)
    assert tells_redelivery(app)
    for again in (False, True):  # a connection that ends gives back what it has not acknowledged
        with app.connection_for_write() as connection:
            queue = connection.SimpleQueue("left-over")
            if not again:
                queue.put("text")
            assert queue.get(timeout=10).delivery_info["redelivered"] is again
    with app.connection_for_write() as connection:
        connection.default_channel.queue_delete("left-over")
