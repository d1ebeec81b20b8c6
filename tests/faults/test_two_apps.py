"""Two applications with a broker each share a store: each publishes only its own messages."""

from __future__ import annotations

import pytest

from tests.faults.conftest import MakeLab, database
from tests.services.effects import Effects
from tests.services.lab import Lab
from tests.services.load import all_have_ended, nothing_is_left, paid_once, state
from tests.services.redelivery import not_finished
from tests.services.redis import RedisServer
from tests.services.until import until
from tests.services.worker import Worker

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]

OTHER_BROKER = 14
QUEUE = {"policy": "queue", "ttl": 5.0}


@pytest.fixture
def labs(make_lab: MakeLab, redis_server: RedisServer) -> tuple[Lab, Lab]:
    """Two apps on one store, one shop and one journal."""
    broker = database(redis_server, OTHER_BROKER)
    with redis_server.client() as client:
        client.select(OTHER_BROKER)
        client.flushdb()
    return make_lab(lock=QUEUE), make_lab(lock=QUEUE, celery={"broker_url": broker})


def worker_of(lab: Lab, name: str) -> Worker:
    return Worker(lab.folder, lab.config, name, "threads", 24)


def test_a_message_of_the_other_app_is_left_to_that_app(
    labs: tuple[Lab, Lab], effects: Effects
) -> None:
    one, other = labs
    with worker_of(one, "one") as first, worker_of(other, "other") as second:
        # Given a key that one app holds, and a message of the other that waits for it
        mine = one.app.tasks["pay"].delay("42", hold="first")
        one.journal.wait_for("start", 1)
        theirs = other.app.tasks["pay"].delay("42")
        until("it waits", lambda: state(one, "42").parked == 1)
        # When the first is through, and calls it
        one.go("first")
        until("it is woken", lambda: state(one, "42").grants)
        assert first.stop() == 0
        # Then it comes through its own broker, and to its own worker
        all_have_ended([mine, theirs])
        nothing_is_left(one, ["42"])
        assert not_finished(one.app) == (0, 0)
        assert f"[{theirs.id}] received" not in first.log
        assert f"[{theirs.id}] received" in second.log
    assert paid_once(effects, [mine, theirs])
