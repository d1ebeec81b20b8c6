"""The queue over every store: what a message that waits may rely on, with real workers.

A small set for each; over SQLite, and over Redis in ``tests/faults``, there is a great deal more.
Leases are those of the whole process, as not every store has one for each task.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery.exceptions import TaskRevokedError

from celery_dlock.core.state import KeyState
from celery_dlock.runtime import runtime
from tests.cli.terminal import dlock
from tests.services.brokers import close
from tests.services.lab import Lab
from tests.services.stores import SHARED
from tests.services.turns import done, held, nothing_is_left, numbers, parked
from tests.services.until import until
from tests.workers.conftest import on_store

#: Its workers hear of a revocation.
REVOKES = {"worker_enable_remote_control": True}

#: ``make(policy, **config)``: a lab over the store of the test.
Make = Callable[..., Lab]


@pytest.fixture(params=SHARED)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    labs: list[Lab] = []

    def make(policy: str, **config: Any) -> Lab:
        labs.append(on_store(request, tmp_path, request.param, policy, **config))
        return labs[-1]

    yield make
    for lab in labs:
        close(lab.app)


@pytest.fixture(scope="module", params=SHARED)
def queue(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lab]:
    """One worker for all scenes of its queue, with three slots."""
    lab = on_store(
        request, tmp_path_factory.mktemp("queue"), request.param, "queue", celery=REVOKES
    )
    with lab.worker("threads", concurrency=3):
        yield lab
    close(lab.app)


def test_who_waits_is_woken_in_the_order_of_arrival(queue: Lab) -> None:
    # Given two orders in work, so that messages arrive one after another at the third slot
    apply = queue.app.tasks["apply"]
    held(queue, "a", "b")
    sent = [apply.delay(order, number) for number in range(1, 6) for order in "ab"]
    parked(queue, "a", 5)
    parked(queue, "b", 5)
    assert done([apply.delay("c", 7)]) == [7]

    queue.go("a")

    assert done(sent) == [number for number in range(1, 6) for _ in "ab"]
    assert numbers(queue, "a") == numbers(queue, "b") == list(range(6))
    nothing_is_left(queue, "a", "b", "c")


def test_a_task_that_retries_lets_the_next_one_by_and_comes_again(queue: Lab) -> None:
    held(queue, "again")
    again = queue.app.tasks["apply"].delay("again", 1, again=0)
    parked(queue, "again", 1)
    behind = queue.app.tasks["apply"].delay("again", 2)
    parked(queue, "again", 2)
    queue.go("again")

    assert done([again, behind]) == [1, 2]
    assert sorted(numbers(queue, "again")) == [0, 1, 1, 2]
    nothing_is_left(queue, "again")


def test_one_that_is_revoked_ends_at_once_and_the_next_keeps_its_turn(queue: Lab) -> None:
    held(queue, "revoked")
    revoked = queue.app.tasks["apply"].delay("revoked", 1)
    parked(queue, "revoked", 1)
    behind = queue.app.tasks["apply"].delay("revoked", 2)
    parked(queue, "revoked", 2)

    queue.app.control.revoke(revoked.id)

    with pytest.raises(TaskRevokedError):
        revoked.get(timeout=60)
    queue.go("revoked")
    assert done([behind]) == [2]
    assert numbers(queue, "revoked") == [0, 2]


def test_nobody_overtakes_who_was_published_before(make: Make) -> None:
    queues = {"task_queues": {"fast": {}, "slow": {}}, "task_default_queue": "fast"}
    lab = make("queue as published", celery={**REVOKES, **queues})
    apply = lab.app.tasks["apply"]
    # Given a head in a queue that no worker takes from
    sent = [apply.apply_async(("42", 0), queue="slow")]
    sent += [apply.apply_async(("42", number), queue="fast") for number in range(1, 6)]
    only_fast = {**lab.config["celery"], "task_queues": {"fast": {}}}
    with lab.worker("threads", concurrency=2, celery=only_fast):
        # When the others have been had in hand
        assert done([apply.apply_async(("other", 7), queue="fast")]) == [7]
        assert lab.journal.read("start", order="42") == []

        lab.app.control.add_consumer("slow")

        assert done(sent) == list(range(6))
        assert numbers(lab, "42") == list(range(6))


@pytest.mark.slow
def test_a_task_whose_worker_is_killed_runs_again_before_who_waits(make: Make) -> None:
    # On a broker that does not deliver again what it has handed out
    lab = make("queue and keep")
    with lab.worker("prefork", concurrency=2) as worker:
        killed = lab.app.tasks["apply"].delay("42", 1, hold="first")
        lab.journal.wait_for("start", number=1)
        behind = lab.app.tasks["apply"].delay("42", 2)
        parked(lab, "42", 2)
        worker.kill()
        lab.go("first")
    with lab.worker("prefork", concurrency=2):
        assert done([killed, behind]) == [1, 2]

        started = lab.journal.read("start")
        assert [entry["number"] for entry in started] == [1, 1, 2]
        assert [e["token"] for e in started] == sorted({e["token"] for e in started})
        until("nothing is left", lambda: _state(lab, "42") == KeyState())


def _state(lab: Lab, order: str) -> KeyState:
    return runtime(lab.app).backend.peek(f"order:{order}")


@pytest.mark.slow
def test_it_cools_down_although_its_worker_is_killed(make: Make) -> None:
    lab = make("queue", lock={"cooldown": 3600})
    with lab.worker("prefork", concurrency=2) as worker:
        lab.app.tasks["apply"].delay("42", 0, hold="for ever")
        lab.journal.wait_for("start", number=0)
        lab.app.tasks["apply"].delay("42", 1)
        parked(lab, "42", 1)
        worker.kill()
    with lab.worker("prefork", concurrency=2):
        until("its lease has ended", lambda: _state(lab, "42").holders == ())

        (slot,) = _state(lab, "42").cooling
        assert slot.limit == 1
        assert len(lab.journal.read("start")) == 1


def test_what_a_command_put_on_hold_stays_closed(queue: Lab) -> None:
    (queue.folder / "lab.json").write_text(json.dumps(queue.config))

    def run(*arguments: str) -> str:
        config = {"LAB_CONFIG": str(queue.folder / "lab.json")}
        said = dlock(queue.folder, *arguments, app="tests.services.lab:app", env=config)
        assert said.returncode == 0, said.stderr
        return said.stdout

    runs = queue.app.tasks["apply"].delay("hold", 0, hold="hold")
    queue.journal.wait_for("start", order="hold", number=0)
    run("hold", "order:hold", "--for", "1h", "--because", "it pays twice", "--by", "ann", "--yes")
    gone = time.monotonic()
    waits = queue.app.tasks["apply"].delay("hold", 1)
    parked(queue, "hold", 1)
    queue.go("hold")

    assert done([runs]) == [0]
    until("no lease of the command lasts", lambda: time.monotonic() > gone + 6)
    assert len(queue.journal.read("start", order="hold")) == 1
    assert "by ann: it pays twice" in run("show", waits.id)
    run("hold", "order:hold", "--end", "--yes")

    assert done([waits]) == [1]
    nothing_is_left(queue, "hold")


def test_who_runs_is_aborted_for_the_newest(make: Make) -> None:
    lab = make("newest", lock={"on_lost": "abort"})
    outrun = lab.app.tasks["outrun"]
    with lab.worker("prefork", concurrency=2):
        first = outrun.delay("42", "sleeps")
        lab.journal.wait_for("start")
        newest = outrun.delay("42", "polls")
        lab.journal.wait_for("start", count=2)
        lab.go("on")

        assert done([newest]) == ["ran"]
        assert first.get(timeout=60)["reason"] == f"replaced by {newest.id}"
        nothing_is_left(lab, "42")
    assert len(lab.journal.read("aborted")) == len(lab.journal.read("end")) == 1


def test_who_does_not_listen_loses_its_key_to_the_newest(make: Make) -> None:
    lab = make("newest")
    outrun = lab.app.tasks["outrun"]
    with lab.worker("threads", concurrency=2):
        first = outrun.delay("42", "polls")
        (old,) = lab.journal.wait_for("start")
        newest = outrun.delay("42", "polls")
        _, new = lab.journal.wait_for("start", count=2)
        assert old["token"] < new["token"]
        assert [holder.task for holder in runtime(lab.app).backend.peek("order:42").holders] == [
            f"{newest.id}:0:0"
        ]
        lab.go("on")

        # The old one may be skipped by now, though its body runs on: the fence protects the data.
        result, ran = done([first, newest])
        assert (result == "ran" or result["skipped"], ran) == (True, "ran")
        nothing_is_left(lab, "42")
