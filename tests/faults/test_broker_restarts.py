"""The broker is killed and comes back while messages wait in the store, or have been woken.

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
)
from tests.services.durable import (
    Server,
    Way,
    all_are_done,
    durable,
    kinds,
    no_copy_is_left,
    sometimes_away,
)
from tests.services.lab import Lab
from tests.services.rabbitmq import RabbitMQServer
from tests.services.redelivery import deliver_again
from tests.services.redis import RedisServer
from tests.services.turns import done, held, nothing_is_left, numbers, parked
from tests.services.until import until
from tests.services.worker import Worker

pytestmark = pytest.mark.slow


Broker = Server | Way


@pytest.fixture(params=kinds("redis", "rabbitmq", "quorum"))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def broker(request: pytest.FixtureRequest, kind: str) -> Iterator[Broker]:
    """One that is away for a while."""
    with sometimes_away(request, kind) as server:
        yield server


@pytest.fixture
def lab(tmp_path: Path, broker: Broker, kind: str) -> Iterator[Lab]:
    yield from make_lab(tmp_path, broker, kind)


@pytest.fixture
def own_broker(kind: str) -> Iterator[Server]:
    """One whose process dies, and starts with what is on its disk."""
    with durable(kind) as server:
        yield server


@pytest.fixture
def own_lab(tmp_path: Path, own_broker: Server, kind: str) -> Iterator[Lab]:
    yield from make_lab(tmp_path, own_broker, kind)


def make_lab(folder: Path, broker: Broker, kind: str) -> Iterator[Lab]:
    if isinstance(broker, RedisServer):
        config = over_redis(broker.port)
    else:
        config = (over_quorum_queues if kind == "quorum" else over_rabbitmq)(broker.url)
    celery = {**config, **kept_in_sqlite(folder)}
    options = {"lock": {"policy": "queue"}, "task": {"acks_late": True}}
    lab = Lab(folder, {"celery": celery, **options})
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


def test_a_broker_that_is_away_when_the_next_one_is_woken(lab: Lab, broker: Broker) -> None:
    with lab.worker("prefork", concurrency=2) as worker:
        # Given a body and messages that wait for it
        held(lab, "42")
        sent = send(lab, 4)
        # When the body ends, and wakes the next one, while there is no broker
        broker.kill()
        lab.go("42")
        until("it is woken", lambda: runtime(lab.app).backend.peek("order:42").grants)
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


def test_a_broker_that_is_killed_with_a_woken_message_in_it(
    own_lab: Lab, own_broker: Server
) -> None:
    lab = own_lab
    with lab.worker("prefork", concurrency=1) as worker:
        # Given messages that wait, and one of them woken while no worker is there
        sent = one_is_woken(lab, worker)
        # When the broker is killed and comes back
        kill(own_broker, lab)
        own_broker.start()
        until("the woken message is there again", lambda: left(lab.app) == 1)
        # Then all run in their turn
        all_run(lab, worker, sent)


def one_is_woken(lab: Lab, worker: Worker) -> list[AsyncResult]:
    with lock("order:42", app=lab.app, timeout=0):
        sent = send(lab, 4)
        worker.stop()
    until("it is woken", lambda: left(lab.app) == 1)
    return sent


def all_run(lab: Lab, worker: Worker, sent: list[AsyncResult]) -> None:
    worker.start()
    until("all are done", lambda: all_are_done(worker, sent), timeout=60)
    assert done(sent) == [1, 2, 3, 4]
    until("no copy is left", lambda: no_copy_is_left(worker, lab))
    assert numbers(lab, "42") == [1, 2, 3, 4]
    nothing_is_left(lab, "42")
