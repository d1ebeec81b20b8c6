"""What taking a place where a task is published costs: counted at the servers, nothing timed."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_dlock.runtime import runtime
from tests.services.lab import Lab
from tests.services.redis import RedisServer
from tests.services.until import until
from tests.workers.conftest import MakeLab
from tests.workers.test_cost import on_redis, round_trips, settled

pytestmark = pytest.mark.server("redis")


@pytest.fixture
def lab(make_lab: MakeLab, own_redis_server: RedisServer) -> Lab:
    lab = on_redis(make_lab, own_redis_server, "queue as published")
    lab.app.tasks["apply"].delay("warm", 0)  # it connects, loads the script, declares the queue
    return lab


def at_the_broker(lab: Lab) -> int:
    options = lab.app.conf.broker_transport_options
    return len(list(Path(options["data_folder_out"]).iterdir()))


def test_publishing_costs_one_round_trip_and_at_most_one_publish(
    lab: Lab, own_redis_server: RedisServer
) -> None:
    before, sent = round_trips(own_redis_server), at_the_broker(lab)

    # When ten tasks find their key free, each is one message
    for number in range(10):
        lab.app.tasks["apply"].delay(f"order-{number}", number)
    assert round_trips(own_redis_server) == before + 10
    assert at_the_broker(lab) == sent + 10

    # When ten more find one before them, they are none
    for number in range(10):
        lab.app.tasks["apply"].delay(f"order-{number}", 10 + number)
    assert round_trips(own_redis_server) == before + 20
    assert at_the_broker(lab) == sent + 10


def test_from_publishing_to_the_end_it_costs_three_round_trips(
    lab: Lab, own_redis_server: RedisServer
) -> None:
    with lab.worker("prefork", concurrency=1):
        lab.journal.wait_for("end", order="warm")
        # Given a process that has connected and loaded its scripts
        # Published and left by a script that was sent in full, once; entered by the first of them
        until("the warm-up has left", settled(own_redis_server, 2 + 1 + 2))
        before = round_trips(own_redis_server)

        # When twenty tasks run of one key, all but the first of them contended
        for number in range(20):
            lab.app.tasks["apply"].delay("42", number)
        lab.journal.wait_for("end", count=21)
        until("all have left", settled(own_redis_server, before + 60))
        lab.app.tasks["apply"].delay("last", 0)  # whatever came late shows before this one
        lab.journal.wait_for("end", order="last")
        until("the last has left", settled(own_redis_server, before + 63))

    # Then each took one to be published, one to enter and one to leave
    assert round_trips(own_redis_server) == before + 63
    assert [e["number"] for e in lab.journal.read("start", order="42")] == list(range(20))
    assert runtime(lab.app).backend.peek("order:42").holders == ()
