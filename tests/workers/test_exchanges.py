"""A message that came by an exchange goes by it again, over a connection that has not seen it."""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from kombu import pools
from kombu.common import Broadcast
from kombu.entity import Exchange, Queue

from celery_dlock import LockedTask
from celery_dlock.messages.way_back import to_declare
from celery_dlock.runtime import forget
from celery_dlock.testing import held_by_another
from tests.services.brokers import close, over_redis
from tests.services.desk import Desk, open_desk
from tests.services.redis import RedisServer
from tests.workers.conftest import charging


@pytest.fixture
def desk(redis_server: RedisServer) -> Iterator[Desk]:
    """Over a broker of which kombu knows exchanges only in the memory of a connection."""
    queues = [Queue("celery"), Queue("events", Exchange("events", type="topic"), "ev.#")]
    conf = {**over_redis(redis_server.port), "task_default_queue": "celery"}
    with open_desk(**conf, task_queues=queues, task_create_missing_queues=False) as desk:
        yield desk
        forget(desk.app)
        close(desk.app)


def deliver_one(desk: Desk, task: LockedTask) -> None:
    """Publish *task*, and let another connection than the publisher's deliver it."""
    task.apply_async(("42",), queue="events", routing_key="ev.paid")
    pools.reset()
    desk.app.amqp._producer_pool = desk.app._pool = None
    desk.deliver("events")


@pytest.mark.parametrize("policy", ["reschedule", "queue"])
def test_a_task_that_finds_its_key_taken_comes_back(desk: Desk, policy: str) -> None:
    charge = charging(desk, on_contention=policy)
    with held_by_another("order:42", app=desk.app):
        deliver_one(desk, charge)
    again: Any = desk.take("events")
    assert again.delivery_info["routing_key"] == "ev.paid"
    assert again.headers["dlock"]["waits"] == 1


def test_the_next_attempt_comes(desk: Desk) -> None:
    @desk.locked("order:{order}", bind=True, name="charge")
    def charge(self: Any, order: str) -> None:
        raise self.retry(countdown=0)

    deliver_one(desk, charge)
    again: Any = desk.take("events")
    assert (again.delivery_info["routing_key"], again.headers["retries"]) == ("ev.paid", 1)


def test_a_broadcast_that_is_rescheduled_does_not_go_to_all_again() -> None:
    news = Exchange("news", type="fanout")
    queues = [Broadcast("here", exchange=news), Queue("celery")]
    with open_desk(task_queues=queues) as desk:
        charge = charging(desk)
        here = desk.app.amqp.queues["here"](desk.channel)
        here.declare()
        charge.apply_async(("42",), exchange="news", routing_key="here")
        with held_by_another("order:42", app=desk.app):
            desk.deliver(here.name)
        assert (desk.size(here.name), desk.size()) == (0, 1)


def test_where_a_queue_needs_an_exchange_a_woken_message_goes_to_the_queue_it_came_from() -> None:
    with open_desk(broker_transport="tests.services.pubsub:Transport") as desk:

        def take() -> Any:
            message = desk.channel.basic_get("celery")
            assert message is not None
            message.accept = {"application/json"}
            return message

        desk.app.amqp.queues["celery"](desk.channel).declare()
        # Given a message that is parked
        result = charging(desk, on_contention="queue").delay("42")
        with held_by_another("order:42", app=desk.app):
            desk.run(take())
            # When it is woken over a connection that has not seen its queue
            pools.reset()
            desk.app.amqp._producer_pool = desk.app._pool = None
        # Then it comes
        desk.run(take())
        assert result.get() == "42"
        assert desk.store.dead() == []


def test_what_belongs_to_one_worker_is_not_declared_for_it() -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)
    events, news = Exchange("events", "topic"), Exchange("news", "fanout")
    own = Queue("own", events, "own.#", exclusive=True)
    shared = Queue("shared", events, "shared.#")
    app.conf.task_queues = [own, shared, Broadcast("here", exchange=news)]
    with app.connection_for_write() as connection:
        producer = SimpleNamespace(connection=connection)
        assert to_declare(app, producer, "events", "") == [events, shared]
        assert to_declare(app, producer, "news", "") == [news]
        assert to_declare(app, producer, "", "own") == []
    with Celery(broker="amqp://", set_as_current=False).connection_for_write() as amqp:
        producer = SimpleNamespace(connection=amqp)
        assert to_declare(app, producer, "events", "") == [], "RabbitMQ knows it"
