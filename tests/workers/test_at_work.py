"""Features with real workers, over the store that needs no server."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery.exceptions import TaskRevokedError

from celery_dlock import LockContended, lock
from celery_dlock.core.state import KeyState
from celery_dlock.ops.overview import lines_in_use
from celery_dlock.runtime import forget, runtime
from tests.services import faults
from tests.services.lab import Lab
from tests.services.members import key_of
from tests.services.turns import done, held, nothing_is_left, parked
from tests.services.until import until
from tests.workers.conftest import MakeLab, embedded

# Waiting in the store: nothing is in the worker, and every message ends.


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One worker with two slots; its tasks queue, and its members do as their policy says."""
    folder = tmp_path_factory.mktemp("queue")
    options = {"lock": {"policy": "queue"}, "task": {"acks_late": True}}
    lab = Lab(folder, {"celery": embedded(folder), **options})
    with lab.worker("prefork", concurrency=2):
        yield lab
    forget(lab.app)


def member(lab: Lab, policy: str, case: str) -> Any:
    """The result of another one with this policy."""
    return lab.app.tasks[f"member: {policy}"].delay(case=case, body="returns")


def waits(lab: Lab, case: str) -> None:
    backend = runtime(lab.app).backend
    until("one waits", lambda: backend.peek(key_of(case)).parked == 1)


def test_who_waits_leaves_the_worker_to_others(lab: Lab) -> None:
    held(lab, "busy")
    sent = [lab.app.tasks["apply"].delay("busy", number) for number in range(1, 21)]
    parked(lab, "busy", 20)

    assert done([lab.app.tasks["apply"].delay("other", 7)]) == [7]
    lab.go("busy")
    assert done(sent) == list(range(1, 21))


def test_a_full_queue_refuses_the_newest(lab: Lab) -> None:
    with lock(key_of("full"), app=lab.app, timeout=0):
        first = member(lab, "queue of one", "full")
        waits(lab, "full")

        with pytest.raises(LockContended, match="full"):
            member(lab, "queue of one", "full").get(timeout=60)

    assert done([first]) == ["member"]


def test_the_newest_replaces_the_one_that_waits(lab: Lab) -> None:
    with lock(key_of("replace"), app=lab.app, timeout=0):
        old = member(lab, "replace", "replace")
        waits(lab, "replace")
        new = member(lab, "replace", "replace")

        (result,) = done([old])
        assert result["skipped"] is True
        assert "newer" in result["reason"]

    assert done([new]) == ["member"]
    assert len(lab.journal.read("ran", case="replace")) == 1


def test_a_message_that_expires_while_it_waits_gives_its_turn_to_the_next(lab: Lab) -> None:
    held(lab, "ends")
    expires = datetime.now(UTC) + timedelta(seconds=5)
    expiring = lab.app.tasks["apply"].apply_async(("ends", 1), expires=expires)
    parked(lab, "ends", 1)
    after = lab.app.tasks["apply"].delay("ends", 2)
    parked(lab, "ends", 2)
    until("it has expired", lambda: datetime.now(UTC) > expires)
    lab.go("ends")

    assert done([after]) == [2]
    with pytest.raises(TaskRevokedError):
        expiring.get(timeout=60)


@pytest.mark.slow
def test_a_task_whose_worker_is_killed_runs_again(make_lab: MakeLab) -> None:
    """The broker redelivers nothing, and acknowledgement is early: the store has the message."""
    lab = make_lab(lock={"policy": "queue and keep", "ttl": 1.0})
    with lab.worker("prefork", concurrency=2) as worker:
        first = lab.app.tasks["apply"].delay("42", 1, hold="first")
        lab.journal.wait_for("start", number=1)
        second = lab.app.tasks["apply"].delay("42", 2)
        parked(lab, "42", 2)

        worker.send(signal.SIGKILL, whole_group=True)
        lab.go("first")
    with lab.worker("prefork", concurrency=2):
        assert done([first, second]) == [1, 2]
        backend = runtime(lab.app).backend
        until("they have left", lambda: backend.peek("order:42") == KeyState())

    assert [entry["number"] for entry in lab.journal.read("start")] == [1, 1, 2]


# Debounced tasks with real workers, which wake them, and may die at the wrong moment.


def store_is_empty(lab: Lab) -> bool:
    return not [*lines_in_use(runtime(lab.app).backend)]


def test_a_burst_runs_once_with_the_newest_arguments(make_lab: MakeLab) -> None:
    lab = make_lab()
    index = lab.app.tasks["index"]
    with lab.worker("prefork", concurrency=2):
        for order in "ab":
            results = [index.delay(order, number) for number in range(20)]
            assert {result.id for result in results} == {results[0].id}
            assert results[0].get(timeout=30) == 19

        until("nothing is left", lambda: store_is_empty(lab))
    ran = [(entry["order"], entry["number"]) for entry in lab.journal.read("indexed")]
    assert ran == [("a", 19), ("b", 19)]


@pytest.mark.parametrize(
    ("where", "acks_late"),
    [
        ("celery_dlock.locks.hold:Hold.ask", False),
        ("celery_dlock.locks.manager:LockManager.take_back", True),
    ],
    ids=["before its lock is asked for", "before its turn is given back"],
)
def test_a_worker_that_is_killed_before_it_has_the_lock_loses_nothing(
    make_lab: MakeLab, where: str, acks_late: bool
) -> None:
    """Over a broker that delivers nothing again: the store has the message until then."""
    lab = make_lab(task={"acks_late": acks_late}, faults=[faults.kill("before", where)])
    with lab.worker("solo", concurrency=1) as worker:
        result = lab.app.tasks["index"].delay("a", 1)
        until("the fault strikes", lambda: faults.struck(lab.folder))
        worker.ended()

    with lab.worker("solo", concurrency=1):
        assert result.get(timeout=60) == 1
        until("nothing is left", lambda: store_is_empty(lab))
    assert len(lab.journal.read("indexed")) == 1


# The newest of a task replaces the one that runs, with real workers.


KEY = "order:42"


def replaced_by(lab: Lab) -> list[str | None]:
    """By whom those who hold the key are asked to give way."""
    return [holder.replaced_by for holder in runtime(lab.app).backend.peek(KEY).holders]


def test_one_that_takes_no_slot_of_a_worker_asks_as_well(make_lab: MakeLab) -> None:
    lab = make_lab(lock={"policy": "newest", "ttl": 60.0})
    outrun = lab.app.tasks["outrun"]
    with lab.worker("prefork", concurrency=2):
        first = outrun.delay("42", "polls")
        lab.journal.wait_for("start")
        between = outrun.delay("42", "polls")
        parked(lab, "42", 2)  # and the message of the one that runs
        assert replaced_by(lab) == [f"{between.id}:0:0"]

        newest = outrun.delay("42", "polls")
        until("that one asks", lambda: replaced_by(lab) == [f"{newest.id}:0:0"])
        lab.go("on")

        assert between.get(timeout=60)["skipped"]
        assert [first.get(timeout=60), newest.get(timeout=60)] == ["ran", "ran"]


def test_one_whose_child_is_killed_while_it_is_asked_does_not_run_again(make_lab: MakeLab) -> None:
    lab = make_lab(
        lock={"policy": "newest", "ttl": 60.0},
        task={"acks_late": True, "reject_on_worker_lost": True},
    )
    outrun = lab.app.tasks["outrun"]
    with lab.worker("prefork", concurrency=2):
        first = outrun.delay("42", "polls")
        (start,) = lab.journal.wait_for("start")
        newest = outrun.delay("42", "polls")
        parked(lab, "42", 2)  # and the message of the one that runs

        os.kill(start["pid"], signal.SIGKILL)
        lab.go("on")

        assert newest.get(timeout=60) == "ran"
        assert first.get(timeout=60)["reason"] == f"replaced by {newest.id}"
        nothing_is_left(lab, "42")
    assert len(lab.journal.read("start")) == 2


# A limit, and a time limit.
