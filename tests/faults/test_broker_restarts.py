"""The broker is killed and comes back while messages wait in the store, or have been called.

A call that the broker lost, or never got, is repeated; what it kept is not run twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from celery.result import AsyncResult

from celery_dlock import lock
from celery_dlock.runtime import runtime
from tests.services.brokers import (
    close,
    kept_in_sqlite,
    left,
    over_quorum_queues,
    over_rabbitmq,
    over_redis,
    purge,
)
from tests.services.durable import Server, all_are_done, durable, kinds, no_copy_is_left
from tests.services.lab import Lab
from tests.services.rabbitmq import RabbitMQServer
from tests.services.redelivery import deliver_again
from tests.services.redis import RedisServer
from tests.services.turns import done, held, nothing_is_left, numbers, parked
from tests.services.until import until

pytestmark = pytest.mark.slow


@pytest.fixture(params=kinds("redis", "rabbitmq", "quorum"))
def broker(request: pytest.FixtureRequest) -> Iterator[Server]:
    with durable(request.param) as server:
        yield server


@pytest.fixture
def lab(request: pytest.FixtureRequest, tmp_path: Path, broker: Server) -> Iterator[Lab]:
    if isinstance(broker, RedisServer):
        config = over_redis(broker.port)
    else:
        quorum = "quorum" in request.node.callspec.params.values()
        config = (over_quorum_queues if quorum else over_rabbitmq)(broker.url)
    celery = {**config, **kept_in_sqlite(tmp_path)}
    options = {"lock": {"policy": "queue"}, "task": {"acks_late": True}}
    lab = Lab(tmp_path, {"celery": celery, **options})
    yield lab
    close(lab.app)


def send(lab: Lab, count: int) -> list[AsyncResult]:
    sent = [lab.app.tasks["apply"].delay("42", number) for number in range(1, count + 1)]
    parked(lab, "42", count)
    return sent


def kill(broker: Server, lab: Lab) -> None:
    """SIGKILL, once the broker has on disk what it has answered for."""
    if isinstance(broker, RabbitMQServer):
        for queue in lab.app.conf.task_queues or ():
            until("the queue is on disk", partial(broker.will_find, queue))
    broker.kill()


def test_a_broker_that_is_away_when_the_next_one_is_woken(lab: Lab, broker: Server) -> None:
    with lab.worker("prefork", concurrency=2) as worker:
        # Given a body and messages that wait for it
        held(lab, "42")
        sent = send(lab, 4)
        # When the body ends, and calls the next one, while there is no broker
        kill(broker, lab)
        lab.go("42")
        until("it is called", lambda: runtime(lab.app).backend.peek("order:42").grants)
        until("in vain", lambda: "could not be woken" in worker.log)
        broker.start()
        worker.start_if_gone()
        if isinstance(broker, RedisServer):
            deliver_again(lab.app)  # what the body's worker could not acknowledge
        # Then each runs once and in its turn, and the body's message not again
        until("all are done", lambda: all_are_done(worker, sent), timeout=60)
        assert done(sent) == [1, 2, 3, 4]
        until("no copy is left", lambda: no_copy_is_left(worker, lab))
        assert numbers(lab, "42") == [0, 1, 2, 3, 4]
        nothing_is_left(lab, "42")


@pytest.mark.parametrize("lost", [False, True], ids=["kept", "lost"])
def test_a_broker_that_is_killed_with_a_woken_message_in_it(
    lab: Lab, broker: Server, lost: bool
) -> None:
    with lab.worker("prefork", concurrency=1) as worker:
        # Given messages that wait, and one of them called while no worker is there
        with lock("order:42", app=lab.app, timeout=0):
            sent = send(lab, 4)
            worker.stop()
        until("it is called", lambda: left(lab.app) == 1)
        # When the broker is killed and comes back, with the call or without
        kill(broker, lab)
        broker.start()
        until("the call is there again", lambda: left(lab.app) == 1)
        if lost:
            assert purge(lab.app) == 1
        # Then all run in their turn
        worker.start()
        until("all are done", lambda: all_are_done(worker, sent), timeout=60)
        assert done(sent) == [1, 2, 3, 4]
        until("no copy is left", lambda: no_copy_is_left(worker, lab))
        assert numbers(lab, "42") == [1, 2, 3, 4]
        nothing_is_left(lab, "42")
