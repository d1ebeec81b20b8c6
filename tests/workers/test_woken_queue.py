"""Woken messages have a queue of their own at the broker, and go by turns with the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery

from celery_dlock import lock
from celery_dlock.core import turns
from celery_dlock.worker.woken import ConsumeWoken
from tests.services.brokers import close, kept_in_sqlite, over_redis, queues_of
from tests.services.lab import Lab
from tests.services.redis import RedisServer
from tests.services.sites import Site
from tests.services.turns import done, freed, held, nothing_is_left, numbers, parked
from tests.services.until import until

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")

SITES = [
    Site("redis", "prefork", late=True, kept="sqlite"),
    Site("rabbitmq", "prefork", late=True, kept="sqlite"),
    Site("quorum", "prefork", late=True, kept="sqlite"),
    Site("filesystem", "prefork", late=True, kept="sqlite"),
]


@pytest.fixture(scope="module", params=[site.param() for site in SITES])
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = request.param.lab(request, tmp_path_factory.mktemp("site"), policy="queue")
    with lab.worker("prefork", concurrency=2):
        yield lab
    close(lab.app)


def test_it_does_not_wait_behind_what_was_published_meanwhile(lab: Lab) -> None:
    # Given three that wait for the key of a body, and many messages behind the worker's two bodies
    apply = lab.app.tasks["apply"]
    held(lab, "hot")
    sent = [apply.delay("hot", number) for number in range(1, 4)]
    parked(lab, "hot", 3)
    held(lab, "slot")
    sent += [apply.delay(f"quiet-{number}", number) for number in range(60)]

    # When its key is released
    lab.go("hot")
    done(sent)

    began = [e["order"] for e in lab.journal.read("start") if e["order"] != "slot"]
    last = len(began) - 1 - began[::-1].index("hot")
    assert last < 20, began
    lab.go("slot")
    nothing_is_left(lab, "hot", "slot")


def test_it_says_that_it_came_by_its_own_queue_and_its_retry_goes_there(lab: Lab) -> None:
    home, beside = queues_of(lab.app)
    held(lab, "again")
    sent = [lab.app.tasks["apply"].delay("again", number, again=0.01) for number in (1, 2)]
    parked(lab, "again", 2)

    lab.go("again")
    done(sent)

    entries = [e for e in lab.journal.read("start", order="again") if e["number"]]
    assert sorted((e["number"], e["retries"]) for e in entries) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert not [e for e in entries if e["way"] == beside]
    assert {e["way"] for e in entries if not e["retries"]} == {home}
    nothing_is_left(lab, "again")


@pytest.mark.server("redis")
def test_one_of_the_configuration_is_the_same(redis_server: RedisServer, tmp_path: Path) -> None:
    # Given both queues in task_queues, as where the broker lets nobody declare one
    celery = {**over_redis(redis_server.port), **kept_in_sqlite(tmp_path)}
    home = celery["task_default_queue"]
    celery["task_queues"] = {
        home: {"routing_key": home},
        f"{home}.woken": {"routing_key": f"{home}.woken", "no_declare": True},
    }
    lab = Lab(tmp_path, {"celery": celery, "lock": {"policy": "queue"}})

    with lab.worker("prefork", concurrency=2):
        held(lab, "again")
        sent = [lab.app.tasks["apply"].delay("again", number, again=0.01) for number in (1, 2)]
        parked(lab, "again", 2)
        lab.go("again")
        done(sent)
        nothing_is_left(lab, "again")

    entries = [e for e in lab.journal.read("start", order="again") if e["number"]]
    assert len(entries) == 4
    assert {e["way"] for e in entries} == {home}
    close(lab.app)


def may_not_touch_it(port: int, celery: dict[str, Any]) -> dict[str, Any]:
    """As a user of Redis whom its keys are refused."""
    home = celery["task_default_queue"]
    keys = [home, f"{home}\x06\x16*", "unacked*", "_kombu*"]
    with redis.Redis(port=port) as client:
        client.acl_setuser(
            home, enabled=True, passwords="+pw", keys=keys, channels="*", commands=["+@all"]
        )
    login = f"redis://{home}:pw@"
    return {**celery, "broker_url": celery["broker_url"].replace("redis://", login)}


def is_to_make_none(port: int, celery: dict[str, Any]) -> dict[str, Any]:
    queues: dict[str, Any] = {celery["task_default_queue"]: {}}
    return {**celery, "task_queues": queues, "task_create_missing_queues": False}


@pytest.mark.server("redis")
@pytest.mark.parametrize(
    ("refused", "said"),
    [(may_not_touch_it, "cannot declare"), (is_to_make_none, "task_create_missing_queues is off")],
)
def test_who_does_not_look_at_it_is_sent_the_message_once_more(
    redis_server: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Callable[[int, dict[str, Any]], dict[str, Any]],
    said: str,
) -> None:
    # Given a worker that can take nothing from such queues, and a publisher that makes one
    celery = {**over_redis(redis_server.port), **kept_in_sqlite(tmp_path)}
    lab = Lab(tmp_path, {"celery": celery, "lock": {"policy": "queue as published"}})
    without = refused(redis_server.port, celery)
    monkeypatch.setattr(turns, "WAKE_AGAIN_FIRST", 500_000)

    with lab.worker("prefork", concurrency=2, celery=without, sweeps_every=0.2) as worker:
        # When the publisher takes a place where nobody is before
        result = lab.app.tasks["apply"].delay("first", 1)

        assert result.get(timeout=60) == 1
        freed(lab, "first")  # else the worker is killed before the store knows, and it runs again
        assert said in worker.log
    home, _ = queues_of(lab.app)
    assert [e["way"] for e in lab.journal.read("start")] == [home]

    # And when a later worker finds the first message, it is a duplicate
    with lab.worker("prefork", concurrency=2):
        assert lab.app.tasks["apply"].delay("first", 2).get(timeout=60) == 2
        nothing_is_left(lab, "first")
    assert numbers(lab, "first") == [1, 2]
    close(lab.app)


@pytest.mark.server("redis")
@pytest.mark.parametrize("strategy", ["round_robin", "priority", "sorted"])
def test_redis_gives_woken_messages_by_turns_in_whatever_order_queues_are_asked(
    redis_server: RedisServer, tmp_path: Path, strategy: str
) -> None:
    # Given a worker's consumer, whose queues are full
    app = Celery("turns", set_as_current=False)
    app.conf.update(**over_redis(redis_server.port), **kept_in_sqlite(tmp_path))
    app.conf.broker_transport_options = {"queue_order_strategy": strategy}
    home, beside = queues_of(app)
    with app.connection_for_read() as connection, app.producer_or_acquire() as producer:
        for queue in (home, beside) * 5:
            producer.publish("", routing_key=queue)
        parent: Any = SimpleNamespace(app=app, connection=connection, connection_errors=())
        parent.task_consumer = app.amqp.TaskConsumer(connection)
        parent.create_task_handler = parent.add_task_queue = parent.cancel_task_queue = None
        ConsumeWoken(parent).start(parent)

        # When it fetches them
        fetched: list[str] = []
        parent.task_consumer.on_message = lambda message: fetched.append(
            message.delivery_info["routing_key"]
        )
        parent.task_consumer.consume()
        until("all came", lambda: connection.drain_events(timeout=5) or len(fetched) == 10)

    assert fetched == [beside, home] * 5
    close(app)


@pytest.mark.server("redis")
def test_it_is_looked_at_as_long_as_its_queue_is(redis_server: RedisServer, tmp_path: Path) -> None:
    celery = {
        **over_redis(redis_server.port),
        **kept_in_sqlite(tmp_path),
        "worker_enable_remote_control": True,
    }
    lab = Lab(tmp_path, {"celery": celery, "lock": {"policy": "queue"}})
    home, beside = queues_of(lab.app)

    def looked_at() -> set[str]:
        (queues,) = (lab.app.control.inspect(timeout=1).active_queues() or {"": []}).values()
        return {queue["name"] for queue in queues}

    with lab.worker("prefork", concurrency=2):
        # It is "ready" before it has asked Redis for what it is told by its name
        until("it answers", lambda: looked_at() == {home, beside})

        lab.app.control.add_consumer("tenant", reply=True)
        until("it is added", lambda: looked_at() == {home, beside, "tenant", "tenant.woken"})
        with lock("order:hot", app=lab.app):
            sent = [
                lab.app.tasks["apply"].apply_async(("hot", number), queue="tenant")
                for number in (1, 2)
            ]
            parked(lab, "hot", 2)
        assert done(sent) == [1, 2]
        assert {e["way"] for e in lab.journal.read("start")} == {"tenant"}

        lab.app.control.cancel_consumer("tenant", reply=True)
        until("it is cancelled", lambda: looked_at() == {home, beside})
    close(lab.app)
