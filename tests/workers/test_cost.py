"""What a locked task costs on Redis: commands counted at the server, nothing timed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from celery_dlock.runtime import runtime
from tests.services.lab import Lab
from tests.services.redis import RedisServer
from tests.services.until import until
from tests.workers.conftest import MakeLab

pytestmark = pytest.mark.server("redis")

ROUND_TRIPS = ("evalsha", "eval", "script|load", "multi", "exec", "watch", "publish", "subscribe")


def round_trips(server: RedisServer) -> int:
    """Commands that only a client sends; what a script calls inside the server does not count."""
    with server.client() as client:
        stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ROUND_TRIPS)


@pytest.fixture
def lab(make_lab: MakeLab, own_redis_server: RedisServer) -> Lab:
    return on_redis(make_lab, own_redis_server, "in two seconds")


def on_redis(make_lab: MakeLab, server: RedisServer, policy: str) -> Lab:
    """Locks alone on Redis; broker and results elsewhere.

    Nothing comes in between: the leases are too long to be renewed, and nobody sweeps.
    """
    return make_lab(
        celery={"dlock_url": server.url},
        lock={"ttl": 600.0, "policy": policy},
        task={"acks_late": True},
        sweeps=False,
    )


def settled(server: RedisServer, expected: int) -> Callable[[], bool]:
    return lambda: round_trips(server) >= expected


def test_a_task_without_contention_costs_two_round_trips(
    lab: Lab, own_redis_server: RedisServer
) -> None:
    with lab.worker("prefork", concurrency=1):
        # Given a process that has connected and loaded its scripts
        lab.app.tasks["apply"].delay("warm", 0)
        lab.journal.wait_for("end", order="warm")
        until(
            "the warm-up has left", settled(own_redis_server, 4)
        )  # two scripts, sent once in full
        before = round_trips(own_redis_server)

        # When twenty tasks run, each on a key of its own
        for number in range(20):
            lab.app.tasks["apply"].delay(f"order-{number}", number)
        lab.journal.wait_for("end", count=21)
        until("all have left", settled(own_redis_server, before + 40))
        lab.app.tasks["apply"].delay("last", 0)  # whatever came late shows before this one
        lab.journal.wait_for("end", order="last")
        until("the last has left", settled(own_redis_server, before + 42))

    # Then each took one to enter and one to leave
    assert round_trips(own_redis_server) == before + 42


@pytest.mark.parametrize("policy", ["in two seconds", "queue"])
def test_a_contended_task_costs_three_round_trips_and_one_publish(
    make_lab: MakeLab, own_redis_server: RedisServer, policy: str
) -> None:
    lab = on_redis(make_lab, own_redis_server, policy)
    with lab.worker("prefork", concurrency=2):
        # Given two processes that have connected and loaded their scripts
        # One after the other: two that miss a script at once would both send it
        for name in ("warm-1", "warm-2"):
            lab.app.tasks["apply"].delay(name, 0, hold=name)
            lab.journal.wait_for("start", order=name)
        lab.go("warm-1")
        until("the first has left", settled(own_redis_server, 5))
        lab.go("warm-2")
        until("the warm-up has left", settled(own_redis_server, 6))
        before = round_trips(own_redis_server)

        # When a task meets a held key once, comes back, and runs
        lab.app.tasks["apply"].delay("42", 1, hold="contended")
        lab.journal.wait_for("start", number=1)
        lab.app.tasks["apply"].delay("42", 2)
        until("the second was refused", settled(own_redis_server, before + 2))
        lab.go("contended")
        lab.journal.wait_for("end", number=2)
        until("both have left", settled(own_redis_server, before + 5))

    # Then the first took two, the second three, and its message was published once more
    assert round_trips(own_redis_server) == before + 5
    (second,) = lab.journal.read("start", number=2)
    assert second["waits"] == 1


# What taking a place where a task is published costs: counted at the servers, nothing timed.


@pytest.fixture
def ordered(make_lab: MakeLab, own_redis_server: RedisServer) -> Lab:
    lab = on_redis(make_lab, own_redis_server, "queue as published")
    lab.app.tasks["apply"].delay("warm", 0)  # it connects, loads the script, declares the queue
    return lab


def at_the_broker(lab: Lab) -> int:
    options = lab.app.conf.broker_transport_options
    return len(list(Path(options["data_folder_out"]).iterdir()))


def test_publishing_costs_one_round_trip_and_at_most_one_publish(
    ordered: Lab, own_redis_server: RedisServer
) -> None:
    before, sent = round_trips(own_redis_server), at_the_broker(ordered)

    # When ten tasks find their key free, each is one message
    for number in range(10):
        ordered.app.tasks["apply"].delay(f"order-{number}", number)
    assert round_trips(own_redis_server) == before + 10
    assert at_the_broker(ordered) == sent + 10

    # When ten more find one before them, they are none
    for number in range(10):
        ordered.app.tasks["apply"].delay(f"order-{number}", 10 + number)
    assert round_trips(own_redis_server) == before + 20
    assert at_the_broker(ordered) == sent + 10


def test_from_publishing_to_the_end_it_costs_three_round_trips(
    ordered: Lab, own_redis_server: RedisServer
) -> None:
    with ordered.worker("prefork", concurrency=1):
        ordered.journal.wait_for("end", order="warm")
        # Given a process that has connected and loaded its scripts
        # Published and left by a script that was sent in full, once; entered by the first of them
        until("the warm-up has left", settled(own_redis_server, 2 + 1 + 2))
        before = round_trips(own_redis_server)

        # When twenty tasks run of one key, all but the first of them contended
        for number in range(20):
            ordered.app.tasks["apply"].delay("42", number)
        ordered.journal.wait_for("end", count=21)
        until("all have left", settled(own_redis_server, before + 60))
        ordered.app.tasks["apply"].delay("last", 0)  # whatever came late shows before this one
        ordered.journal.wait_for("end", order="last")
        until("the last has left", settled(own_redis_server, before + 63))

    # Then each took one to be published, one to enter and one to leave
    assert round_trips(own_redis_server) == before + 63
    assert [e["number"] for e in ordered.journal.read("start", order="42")] == list(range(20))
    assert runtime(ordered.app).backend.peek("order:42").holders == ()
