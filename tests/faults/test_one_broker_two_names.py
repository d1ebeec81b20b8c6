"""One broker that processes spell differently is one; two on one server are two."""

from __future__ import annotations

from typing import Any

import pytest

from celery_dlock import lock
from celery_dlock.runtime import runtime
from tests.faults.conftest import MakeLab, database
from tests.services.effects import Effects
from tests.services.lab import Lab
from tests.services.load import all_have_ended, nothing_is_left, paid_once, state
from tests.services.redelivery import not_finished
from tests.services.redis import RedisServer
from tests.services.until import until
from tests.services.worker import Worker

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]

KEY = "order:42"
OTHER_BROKER = 14
QUEUE = {"policy": "queue", "ttl": 5.0}


def worker_of(lab: Lab, name: str) -> Worker:
    return Worker(lab.folder, lab.config, name, "threads", 8)


def two_that_wait(lab: Lab, other: Lab) -> list[Any]:
    """Tasks of *lab* that a worker has parked that is gone; *other* held their key meanwhile."""
    with lock(KEY, app=other.app), worker_of(lab, "parks") as parks:
        waiting = [lab.app.tasks["pay"].delay("42") for _ in range(2)]
        until("both wait", lambda: state(lab, "42").parked == 2)
        assert parks.stop() == 0
    return waiting


def test_what_waited_under_one_spelling_runs_under_another(
    make_lab: MakeLab, redis_server: RedisServer, effects: Effects
) -> None:
    one_way = "redis://127.0.0.1:{0}/11;redis://127.0.0.2:{0}/11"
    another = "redis://localhost:{0}//11;redis://127.0.0.2:{0}/11"
    # Given tasks that wait, and that a worker has parked that goes
    queue = {"task_default_queue": "spelt"}
    one, other = (
        make_lab(lock=QUEUE, celery={"broker_url": url.format(redis_server.port), **queue})
        for url in (one_way, another)
    )
    waiting = two_that_wait(one, other)
    # When the key is free, and there are only processes that spell the broker differently
    with worker_of(other, "other"):
        # Then they run
        all_have_ended(waiting)
        nothing_is_left(other, ["42"])
    assert paid_once(effects, waiting)


def test_applications_that_differ_in_the_prefix_of_their_queues_run_only_their_own_tasks(
    make_lab: MakeLab, redis_server: RedisServer, effects: Effects
) -> None:
    # Given staging and production of one code base on one Redis, with one store
    staging, production = (
        make_lab(lock=QUEUE, celery={"broker_transport_options": {"global_keyprefix": prefix}})
        for prefix in ("staging:", "production:")
    )
    with worker_of(staging, "staging") as idle:
        # and tasks of production that wait while no worker of production is there
        waiting = two_that_wait(production, staging)
        # When their turn comes, Then staging's worker does not run them
        until("it is told", lambda: "belongs to the broker" in idle.log)
        with worker_of(production, "runs") as runs:
            all_have_ended(waiting)
            nothing_is_left(production, ["42"])
            assert all(f"[{task.id}] received" in runs.log for task in waiting)
        assert not [task.id for task in waiting if f"[{task.id}] received" in idle.log]
    assert paid_once(effects, waiting)


def test_with_the_old_name_what_waits_is_published_at_the_new_address(
    make_lab: MakeLab, redis_server: RedisServer, effects: Effects
) -> None:
    # Given two addresses of one server, of which nobody could know that they are
    old, new = (f"redis://{host}:{redis_server.port}/11" for host in ("127.0.0.1", "127.1"))
    before = make_lab(lock=QUEUE, celery={"broker_url": old})
    name = runtime(before.app).wake.broker
    assert runtime(make_lab(celery={"broker_url": new}).app).wake.broker != name
    after = make_lab(lock=QUEUE, celery={"broker_url": new, "dlock_broker": name})
    waiting = two_that_wait(before, after)
    with worker_of(after, "after"):
        all_have_ended(waiting)
        nothing_is_left(after, ["42"])
    assert paid_once(effects, waiting)


def test_a_message_of_the_other_app_is_left_to_that_app(
    make_lab: MakeLab, redis_server: RedisServer, effects: Effects
) -> None:
    # Given two applications on one store, with a broker each
    with redis_server.client() as client:
        client.select(OTHER_BROKER)
        client.flushdb()
    one = make_lab(lock=QUEUE)
    other = make_lab(lock=QUEUE, celery={"broker_url": database(redis_server, OTHER_BROKER)})
    with worker_of(one, "one") as first, worker_of(other, "other") as second:
        # And a key that one of them holds, and a message of the other that waits for it
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
