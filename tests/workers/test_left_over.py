"""Messages that come late, or again: which of them are duplicates, and how long a wait may be."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from kombu.message import Message

from celery_dlock import LockedTask
from celery_dlock.core.events import Dropped
from celery_dlock.core.lease import SECOND
from celery_dlock.core.operations import Replay
from celery_dlock.core.state import Claim, Run
from celery_dlock.delivery import taking
from celery_dlock.messages.countdown import visibility_timeout
from celery_dlock.messages.woken_queues import tells_redelivery
from celery_dlock.runtime import runtime
from tests.services.desk import Desk, open_desk
from tests.services.rabbitmq import RabbitMQServer
from tests.services.redelivery import deliver_again
from tests.services.redis import RedisServer
from tests.workers.conftest import charging, refused

# A woken message that lay for hours where nobody looked, and was sent again meanwhile.

KEY = "order:42"


@pytest.fixture(autouse=True)
def redelivery_is_told(desk: Desk) -> None:
    desk.patch.setattr(taking, "tells_redelivery", lambda app: True)


@pytest.fixture
def charge(desk: Desk) -> LockedTask:
    @desk.locked("order:{order}", name="charge", on_contention="queue")
    def charge(order: str, number: int) -> None:
        desk.ran.append(number)

    return charge


def woken(desk: Desk, charge: LockedTask) -> Message:
    """The message of a task as its turn has come."""
    charge.delay("42", 1)
    return refused(desk)[1]


def left_over(desk: Desk, charge: LockedTask) -> Message:
    """The message of one that has run by another one since, which the store has forgotten."""
    message = woken(desk, charge)
    desk.run(message)
    desk.store.apply(Replay(KEY, f"{message.headers['id']}:0:0"))
    message.headers["dlock"]["called"] -= 3 * 3600
    message._state = "RECEIVED"
    return message


def test_a_message_that_lay_for_hours_and_was_sent_again_is_dropped(
    desk: Desk, charge: LockedTask
) -> None:
    desk.run(left_over(desk, charge))

    assert desk.ran == [1]
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
    desk: Desk, charge: LockedTask, how: Callable[[Message], None]
) -> None:
    message = left_over(desk, charge)
    how(message)
    desk.run(message)
    assert desk.ran == [1, 1]


def test_one_whose_message_the_store_has_still_is_not(desk: Desk, charge: LockedTask) -> None:
    message = woken(desk, charge)
    message.headers["dlock"]["called"] -= 3 * 3600
    desk.run(message)
    assert desk.ran == [1]


def test_nor_over_a_broker_that_does_not_say_it(desk: Desk, charge: LockedTask) -> None:
    desk.patch.setattr(taking, "tells_redelivery", tells_redelivery)
    desk.run(left_over(desk, charge))
    assert desk.ran == [1, 1]


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


# No wait outlasts the broker's visibility timeout: a message would be delivered while it waits.


@pytest.mark.parametrize(
    ("broker", "options", "expected"),
    [
        ("redis://h/1", {}, 3600.0),
        ("rediss://h/1", {}, 3600.0),
        (["redis://a/1", "redis://b/1"], {}, 3600.0),
        ("sqs://", {}, 1800.0),
        ("redis://h/1", {"visibility_timeout": 40}, 40.0),
        ("some+other://h", {"visibility_timeout": 40}, 40.0),
        ("amqp://h", {}, math.inf),
    ],
)
def test_it_is_the_brokers_own_unless_set(
    broker: Any, options: dict[str, Any], expected: float
) -> None:
    app = Celery(set_as_current=False, broker=broker)
    app.conf.broker_transport_options = options
    assert visibility_timeout(app) == expected


def test_a_copy_of_a_running_task_comes_back_before_it_would_be_delivered_again() -> None:
    with open_desk(broker_transport_options={"visibility_timeout": 8}) as desk:
        charge = charging(desk)
        # Given a delivery that runs in another worker, with a lease of fifty seconds
        other = Claim("order:42", "one:0:0", "other", 50_000_000)
        assert isinstance(desk.store.enter(other).verdict, Run)
        # When a second one comes
        charge.apply_async(("42",), task_id="one")
        before = datetime.now(UTC)
        desk.deliver()
        after = datetime.now(UTC)
        # Then it is put back for half the visibility timeout, not for the rest of the lease
        again = desk.receive()
        due = datetime.fromisoformat(again.headers["eta"])
        assert before + timedelta(seconds=2) < due <= after + timedelta(seconds=4)


@pytest.mark.parametrize(
    ("broker", "options", "config", "expected"),
    [
        ("redis://h/1", {}, {}, 7200),
        ("redis://h/1", {"visibility_timeout": 40}, {}, 7200),
        ("redis://h/1", {"visibility_timeout": 43_200}, {}, 86_400),
        ("amqp://h", {}, {}, 7200),
        ("redis://h/1", {"visibility_timeout": 43_200}, {"dlock_done_ttl": 7200}, 7200),
        ("redis://h/1", {}, {"dlock_done_ttl": 0}, 0),
    ],
)
def test_a_finished_task_is_remembered_for_as_long_as_a_copy_of_it_may_be_delivered(
    broker: str, options: dict[str, Any], config: dict[str, Any], expected: int
) -> None:
    app = Celery(set_as_current=False, broker=broker)
    app.conf.update(dlock_url="memory://", broker_transport_options=options, **config)
    assert runtime(app).done_ttl(queues=False) == expected * SECOND
