"""The broker is gone in the instant in which a running task publishes its own message again.

The worker stands still right before the publish until the broker is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from celery_dlock import lock
from celery_dlock.runtime import runtime
from tests.services import faults
from tests.services.brokers import close, kept_in_sqlite, over_rabbitmq, over_redis
from tests.services.durable import Way, all_are_done, kinds, no_copy_is_left, sometimes_away
from tests.services.lab import Lab
from tests.services.redelivery import deliver_again
from tests.services.redis import RedisServer
from tests.services.turns import nothing_is_left
from tests.services.until import until

pytestmark = pytest.mark.slow


@pytest.fixture(params=kinds("redis", "rabbitmq"))
def broker(request: pytest.FixtureRequest) -> Iterator[RedisServer | Way]:
    with sometimes_away(request, request.param) as server:
        yield server


@pytest.fixture(params=[False, True], ids=["early", "late"])
def late(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def lab(tmp_path: Path, broker: RedisServer | Way, late: bool) -> Iterator[Lab]:
    redis = isinstance(broker, RedisServer)
    config = over_redis(broker.port) if redis else over_rabbitmq(broker.url)
    lab = Lab(
        tmp_path,
        {
            "celery": {**config, **kept_in_sqlite(tmp_path)},
            "lock": {"policy": "reschedule"},
            "task": {"acks_late": late},
            "faults": [faults.stop("before", "celery_dlock.delivery.outgoing:Outgoing.publish")],
        },
    )
    yield lab
    close(lab.app)


@pytest.mark.parametrize("how", ["reschedule", "retry"])
def test_a_task_outlives_a_broker_that_is_away_as_it_publishes(
    lab: Lab, broker: RedisServer | Way, late: bool, how: str
) -> None:
    with lab.worker("prefork", concurrency=1) as worker, ExitStack() as stack:
        # Given a task that is about to publish itself again
        if how == "reschedule":
            held = stack.enter_context(ExitStack())
            held.enter_context(lock("order:42", app=lab.app, timeout=0, ttl=60))
        result = lab.app.tasks["apply"].delay("42", 7, again=0 if how == "retry" else None)
        until("it is about to publish, and stands", worker.has_stopped)
        # When the broker is gone by then
        broker.kill()
        worker.resume()
        where = "goes back to the broker" if late else "is parked"
        until(lambda: f"it {where}: {worker.log}", lambda: where in worker.log)
        if how == "reschedule":
            held.close()
        # And comes back
        broker.start()
        if late and isinstance(broker, RedisServer):
            deliver_again(lab.app)  # what could not be given back: it was on the old connection
        # Then it ends well, as if nothing had been
        until(
            lambda: f"it is done: {worker.log}", lambda: all_are_done(worker, [result]), timeout=90
        )
        assert result.get() == 7
        until("no copy is left", lambda: no_copy_is_left(worker, lab), timeout=90)
        log = worker.log
    attempts = [entry["retries"] for entry in lab.journal.read("start")]
    again = [0, 0, 1] if late else [0, 1]
    assert attempts == (again if how == "retry" else [0])
    assert "raised unexpected" not in log
    nothing_is_left(lab, "42")
    assert runtime(lab.app).backend.dead() == []
