"""The broker is killed and comes back while messages wait in the store, or have been called.

A call that the broker lost, or never got, is repeated; what it kept is not run twice. The workers
are supervised: kombu 5.7 sometimes ends one whose Redis goes away (closing the connection, it
restores messages through a client that is closed already, an AttributeError that nobody expects).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from celery.result import AsyncResult

from celery_dlock import lock
from celery_dlock.tasks.runtime import runtime
from tests.services.brokers import close, kept_in_sqlite, left, over_rabbitmq, over_redis, purge
from tests.services.lab import Lab
from tests.services.rabbitmq import RabbitMQServer
from tests.services.redelivery import deliver_again
from tests.services.redis import RedisServer
from tests.services.require import require
from tests.services.turns import done, held, nothing_is_left, numbers, parked
from tests.services.until import until
from tests.services.worker import Worker

pytestmark = pytest.mark.slow

Server = RedisServer | RabbitMQServer


@pytest.fixture(
    params=[
        pytest.param("redis", marks=pytest.mark.server("redis")),
        pytest.param("rabbitmq", marks=pytest.mark.server("rabbitmq")),
    ]
)
def broker(request: pytest.FixtureRequest) -> Iterator[Server]:
    """One that keeps on disk what it has acknowledged."""
    server: Server
    if request.param == "redis":
        require("redis")
        server = RedisServer("--appendonly", "yes")
    else:
        require("rabbitmq")
        server = RabbitMQServer()
    with server:
        yield server


@pytest.fixture
def lab(tmp_path: Path, broker: Server) -> Iterator[Lab]:
    redis = isinstance(broker, RedisServer)
    config = over_redis(broker.port) if redis else over_rabbitmq(broker.url)
    celery = {**config, **kept_in_sqlite(tmp_path)}
    options = {"lock": {"policy": "queue"}, "task": {"acks_late": True}}
    lab = Lab(tmp_path, {"celery": celery, **options})
    yield lab
    close(lab.app)


def send(lab: Lab, count: int) -> list[AsyncResult]:
    sent = [lab.app.tasks["apply"].delay("42", number) for number in range(1, count + 1)]
    parked(lab, "42", count)
    return sent


def all_are_done(worker: Worker, sent: list[AsyncResult]) -> bool:
    worker.start_if_gone()
    return all(result.ready() for result in sent)


def no_copy_is_left(worker: Worker, lab: Lab) -> bool:
    """Whether the worker, which stops, has met all that the broker delivers once more."""
    worker.stop()
    if left(lab.app) == 0:
        return True
    worker.start()
    return False


def test_a_broker_that_is_away_when_the_next_one_is_called(lab: Lab, broker: Server) -> None:
    with lab.worker("prefork", concurrency=2) as worker:
        # Given a body and messages that wait for it
        held(lab, "42")
        sent = send(lab, 4)
        # When the body ends, and calls the next one, while there is no broker
        broker.kill()
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
def test_a_broker_that_is_killed_with_a_call_in_it(lab: Lab, broker: Server, lost: bool) -> None:
    with lab.worker("prefork", concurrency=1) as worker:
        # Given messages that wait, and one of them called while no worker is there
        with lock("order:42", app=lab.app, timeout=0):
            sent = send(lab, 4)
            worker.stop()
        assert left(lab.app) == 1
        # When the broker is killed and comes back, with the call or without
        broker.restart()
        assert left(lab.app) == 1
        if lost:
            assert purge(lab.app) == 1
        # Then all run in their turn
        worker.start()
        until("all are done", lambda: all_are_done(worker, sent), timeout=60)
        assert done(sent) == [1, 2, 3, 4]
        until("no copy is left", lambda: no_copy_is_left(worker, lab))
        assert numbers(lab, "42") == [1, 2, 3, 4]
        nothing_is_left(lab, "42")
