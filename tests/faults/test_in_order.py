"""``Ordered()`` with real workers over each store: the order of the calls, whatever comes between.

The bodies' journal is the judge. Django's database is PostgreSQL's store by another address.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path

import pytest
from celery import chain
from celery.result import AsyncResult

from celery_dlock import BackendUnavailable, LockedTask
from tests.services.brokers import close, kept_in_sqlite, over_redis
from tests.services.durable import durable
from tests.services.lab import Lab, make_app
from tests.services.redis import RedisServer
from tests.services.redis_nodes import running_nodes
from tests.services.server_process import ServerProcess
from tests.services.stores import SHARED
from tests.services.turns import done, freed, parked
from tests.services.until import until
from tests.services.worker import Worker
from tests.workers.conftest import on_store

pytestmark = [pytest.mark.slow, pytest.mark.once]

ORDERED = "queue as published"

#: Nobody waits for longer until a worker sees that a retry is due, or that a lease has ended.
OFTEN = {"sweeps_every": 0.5}

#: Number and retries of a body.
Run = tuple[int, int]

#: ``call(order, *numbers, **how)``: a task, or a chain; *how* is what the last body is told.
Call = Callable[..., AsyncResult]


def runs(lab: Lab, order: str) -> list[Run]:
    """The bodies of *order* that ended, never two at once, with tokens that grow.

    One that was killed is the next to begin.
    """
    ended: list[Run] = []
    tokens: list[int] = []
    running = killed = None
    for entry in lab.journal.read(order=order):
        run = (entry["number"], entry["retries"])
        if entry["what"] == "start":
            assert (running, killed or run) == (None, run)
            running, killed = run, None
            tokens.append(entry["token"])
        else:
            assert run == running
            running = None
            if entry["what"] == "killed":
                killed = run
            else:
                ended.append(run)
    assert (running, killed) == (None, None)
    assert tokens == sorted(set(tokens))
    return ended


@pytest.fixture(params=SHARED)
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    queues = {"task_queues": {"fast": {}, "slow": {}}, "task_default_queue": "fast"}
    settings = {**queues, "dlock_ttl": 4.0}
    lab = on_store(request, tmp_path, request.param, ORDERED, celery=settings, **OFTEN)
    yield lab
    close(lab.app)


@pytest.fixture
def call(lab: Lab) -> Iterator[Call]:
    """By two publishers, each with connections of its own, and two queues, in turns."""
    other = make_app(lab.config)
    ways = cycle([(lab.app, "fast"), (other, "slow"), (other, "fast"), (lab.app, "slow")])

    def call(order: str, *numbers: int, **how: object) -> AsyncResult:
        app, queue = next(ways)
        *before, last = numbers
        apply = app.tasks["apply"]
        steps = [apply.si(order, number) for number in before]
        steps = [step.set(queue=queue) for step in (*steps, apply.si(order, last, **how))]
        return lab.app.AsyncResult((chain(steps) if before else steps[0]).delay().id)

    yield call
    close(other)


def test_chains_retries_and_a_killed_worker_leave_the_order_of_the_calls(
    lab: Lab, call: Call
) -> None:
    with lab.worker(concurrency=2) as first, lab.worker(concurrency=2) as second:
        sent = [
            call("42", 0, hold="all are called"),
            call("42", 1, 11),
            call("42", 2, again=1),
            call("43", 1),
            call("42", 3, 13, 23, again=0),
            call("42", 4, hold="it was killed"),
            call("43", 2, again=1),
            call("42", 5, 15, again=1),
            call("43", 3),
            call("42", 6),
        ]
        lab.go("all are called")

        (held,) = lab.journal.wait_for("start", order="42", number=4)
        freed(lab, "43")  # what has ended and has not left would run again
        (worker,) = (each for each in (first, second) if each.pid == os.getpgid(held["pid"]))
        lab.journal.write("killed", order="42", number=4, retries=0)
        worker.kill()
        sent.append(call("43", 4))
        lab.go("it was killed")

        assert done(sent) == [0, 11, 2, 1, 23, 4, 2, 15, 3, 6, 4]
        freed(lab, "42")
        freed(lab, "43")

    # The next task of a chain queues when it is published, as the one before it has ended.
    calls = [(0, 0), (1, 0), (2, 0), (2, 1), (3, 0), (4, 0), (5, 0), (6, 0)]
    steps = [(11, 0), (13, 0), (15, 0), (15, 1), (23, 0), (23, 1)]
    assert runs(lab, "42") == [*calls, *steps]
    assert runs(lab, "43") == [(1, 0), (2, 0), (2, 1), (3, 0), (4, 0)]


# The servers end, and come back with what they had.

#: The store's URL, and its servers.
Kept = tuple[str, Sequence[ServerProcess]]

#: Seconds until the retry is due: the servers are gone before that.
LATER = 8.0


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("redis", marks=pytest.mark.server("redis")),
        pytest.param("redlock", marks=pytest.mark.server("redis")),
        pytest.param("postgresql", marks=pytest.mark.server("postgresql")),
        pytest.param("etcd", marks=pytest.mark.server("etcd")),
        pytest.param("zookeeper", marks=pytest.mark.server("zookeeper")),
    ]
)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    """A store that has its data when it comes back; SQLite has no server."""
    if request.param == "sqlite":
        yield kept_in_sqlite(tmp_path)["dlock_url"], []
    elif request.param in ("redis", "redlock"):
        count = 3 if request.param == "redlock" else 1
        with running_nodes(count, "--appendonly", "yes") as nodes:
            # A Redlock whose queue's node is slow may run a duplicate of a task that has ended.
            yield f"{nodes.url}?socket_timeout=2" if count > 1 else nodes[0].url, nodes
    else:
        server = request.getfixturevalue(f"own_{request.param}_server")
        yield server.url, [server]


@pytest.fixture
def own_broker() -> Iterator[RedisServer]:
    with durable("redis") as server:
        assert isinstance(server, RedisServer)
        yield server


@pytest.mark.server("redis")
def test_a_restart_of_store_and_broker_leaves_the_order_of_the_calls(
    tmp_path: Path, kept: Kept, own_broker: RedisServer
) -> None:
    url, store = kept
    servers = [*store, own_broker]
    queues = {"task_queues": {"fast": {}, "slow": {}}, "task_default_queue": "fast"}
    celery = {**over_redis(own_broker.port), **kept_in_sqlite(tmp_path), **queues}
    celery |= {"dlock_url": url, "dlock_ttl": 5.0}
    options = {"lock": {"policy": ORDERED, "ttl": None}, "task": {"acks_late": True}, **OFTEN}
    lab = Lab(tmp_path, {"celery": celery, **options})
    apply = lab.app.tasks["apply"]
    only_fast = {**celery, "task_queues": {"fast": {}}}
    with ExitStack() as stack, lab.worker(concurrency=2, celery=only_fast) as worker:
        stack.callback(close, lab.app)
        # Given a retry that is not due, And a message that was woken and that no worker takes
        first = apply.apply_async(("42", 1), {"hold": "all wait", "again": LATER}, queue="fast")
        sent = [first, *(apply.apply_async(("42", n), queue="fast") for n in (2, 3))]
        sent += [apply.apply_async(("43", n), queue="slow") for n in (1, 2, 3)]
        lab.journal.wait_for("start")
        parked(lab, "42", 3)  # the message of the one that runs is kept
        parked(lab, "43", 2)
        lab.go("all wait")
        until("it is to be tried again", lambda: first.state == "RETRY")

        for server in servers:
            server.kill()
        assert len(lab.journal.read("start")) == 1
        for server in servers:
            server.begin()
        for server in servers:
            server.wait()
        sent += [again_until_taken(apply, order) for order in ("42", "43")]

        with lab.worker(concurrency=2) as other:
            until("all are done", lambda: all_are_done([worker, other], sent), timeout=120)
            assert done(sent) == [1, 2, 3, 1, 2, 3, 4, 4]
            freed(lab, "42")
            freed(lab, "43")

    assert runs(lab, "42") == [(1, 0), (1, 1), (2, 0), (3, 0), (4, 0)]
    assert runs(lab, "43") == [(1, 0), (2, 0), (3, 0), (4, 0)]


def again_until_taken(apply: LockedTask, order: str) -> AsyncResult:
    """Call it under one id until the store answers, as the page says."""

    def taken() -> AsyncResult | None:
        try:
            return apply.apply_async((order, 4), queue="slow", task_id=f"the fourth of {order}")
        except BackendUnavailable:
            return None

    return until("the store takes it", taken)


def all_are_done(workers: Sequence[Worker], sent: Sequence[AsyncResult]) -> bool:
    """What has exited is started again, as kombu 5.7 sometimes does when its Redis goes away."""
    for worker in workers:
        worker.start_if_gone()
    return all(result.ready() for result in sent)
