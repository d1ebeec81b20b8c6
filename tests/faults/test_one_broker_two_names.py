"""One broker that processes spell differently is one; two on one server are two."""

from __future__ import annotations

from typing import Any

import pytest

from celery_dlock import lock
from celery_dlock.core.state import Cause
from celery_dlock.ops import actions
from celery_dlock.runtime import runtime
from tests.faults.conftest import MakeLab, database
from tests.services.effects import Effects
from tests.services.lab import Lab
from tests.services.load import all_have_ended, nothing_is_left, paid_once, state
from tests.services.redis import RedisServer
from tests.services.until import until
from tests.services.worker import Worker

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]

KEY = "order:42"
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


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("redis://127.0.0.1:{}/11", "redis://localhost:{}//11"),
        ("redis://127.0.0.1:{}", "redis://:@127.0.0.1:{}/0"),
        ("redis://127.0.0.1:{0}/11;redis://127.0.0.2:{0}/11",) * 2,
        (
            "redis://127.0.0.1:{0}/11;redis://127.0.0.2:{0}/11",
            "redis://127.0.0.2:{0}/11;redis://127.0.0.1:{0}/11",
        ),
    ],
    ids=["another name of this machine", "database 0", "the same", "the other way round"],
)
def test_what_waited_under_one_spelling_runs_under_another(
    before: str, after: str, make_lab: MakeLab, redis_server: RedisServer, effects: Effects
) -> None:
    # Given tasks that wait, and that a worker has parked that goes
    queue = {"task_default_queue": "spelt"}
    one, other = (
        make_lab(lock=QUEUE, celery={"broker_url": url.format(redis_server.port), **queue})
        for url in (before, after)
    )
    waiting = two_that_wait(one, other)
    # When the key is free, and there are only processes that spell the broker differently
    with worker_of(other, "other"):
        # Then they run
        all_have_ended(waiting)
        nothing_is_left(other, ["42"])
    assert paid_once(effects, waiting)


def test_who_publishes_in_order_may_spell_the_broker_differently(
    make_lab: MakeLab, redis_server: RedisServer, effects: Effects
) -> None:
    ordered = {"policy": "queue as published", "ttl": 5.0}
    web, worker = (
        make_lab(lock=ordered, celery={"broker_url": f"redis://{place}/11"})
        for place in (f"127.0.0.1:{redis_server.port}", f"localhost:{redis_server.port}/")
    )
    sent = [web.app.tasks["pay"].delay("42") for _ in range(3)]
    with worker_of(worker, "worker"):
        all_have_ended(sent)
        nothing_is_left(worker, ["42"])
    assert paid_once(effects, sent)


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


def test_one_that_is_to_end_and_has_no_worker_at_its_broker_is_dead_lettered_for_its_application(
    make_lab: MakeLab, redis_server: RedisServer, effects: Effects
) -> None:
    # Given a task that waits for a key, And workers of another broker only
    fast = {"sweeps_every": 0.5, "call_again": 200_000}
    with redis_server.client() as client:
        client.select(14)
        client.flushdb()
    before, after = (
        make_lab(
            lock=QUEUE | {"policy": "queue for a second"},
            celery={"broker_url": database(redis_server, number)},
            **fast,
        )
        for number in (11, 14)
    )
    backend = runtime(after.app).backend
    with worker_of(after, "after") as theirs:
        with lock(KEY, app=after.app):
            with worker_of(before, "before") as first:
                task = before.app.tasks["pay"].delay("42")
                until("it waits", lambda: state(before, "42").parked == 1)
                first.kill()
            # When it has waited for too long, Then they put it aside, And do not end it as theirs
            until("it is dead", backend.dead, timeout=120)
        assert [letter.dead.cause for letter in backend.dead()] == [Cause.OTHER_BROKER]
        assert not task.ready()
        # And the key is free
        all_have_ended([after.app.tasks["pay"].delay("42")])
        assert f"[{task.id}] received" not in theirs.log
        # It leaves after its result is there: killed in between it would be remembered as lost
        nothing_is_left(after, ["42"])
    # When its own application has a worker again, and replays it, Then it runs
    with worker_of(before, "again"):
        (message,) = actions.dead_under(before.app, task.id)
        assert actions.replay(before.app, message)
        all_have_ended([task])
        assert task.successful()
        nothing_is_left(before, ["42"])
