"""The newest of a task replaces the one that runs, with real workers."""

from __future__ import annotations

import os
import signal

import pytest

from celery_dlock.runtime import runtime
from tests.services.lab import Lab
from tests.services.turns import nothing_is_left, parked
from tests.services.until import until
from tests.workers.conftest import MakeLab

KEY = "order:42"

#: In a thread nothing ends a system call; elsewhere the signal does.
HOW = {"prefork": "sleeps", "threads": "polls"}


def replaced_by(lab: Lab) -> list[str | None]:
    """By whom those who hold the key are asked to give way."""
    return [holder.replaced_by for holder in runtime(lab.app).backend.peek(KEY).holders]


@pytest.mark.parametrize("pool", HOW)
def test_a_body_is_aborted_and_the_newest_runs_at_once(make_lab: MakeLab, pool: str) -> None:
    lab = make_lab(lock={"policy": "newest", "on_lost": "abort", "ttl": 6.0})
    outrun = lab.app.tasks["outrun"]
    with lab.worker(pool, concurrency=2):
        first = outrun.delay("42", HOW[pool])
        lab.journal.wait_for("start")
        newest = outrun.delay("42", "polls")

        (aborted,) = lab.journal.wait_for("aborted")
        _, second = lab.journal.wait_for("start", count=2)
        lab.go("on")
        until("both have ended", lambda: first.ready() and newest.ready())
        nothing_is_left(lab, "42")

    assert first.get()["reason"] == f"replaced by {newest.id}"
    assert newest.get() == "ran"
    assert f"replaced by {newest.id}" in aborted["error"]
    assert second["at"] - aborted["at"] < 6.0  # it did not wait for the end of the lease
    assert [entry["token"] for entry in lab.journal.read("end")] == [second["token"]]


def test_one_that_takes_no_slot_of_a_worker_asks_as_well(make_lab: MakeLab) -> None:
    lab = make_lab(lock={"policy": "newest", "ttl": 60.0})
    outrun = lab.app.tasks["outrun"]
    with lab.worker("prefork", concurrency=2):
        first = outrun.delay("42", "polls")
        lab.journal.wait_for("start")
        between = outrun.delay("42", "polls")
        parked(lab, "42", 1)
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
        parked(lab, "42", 1)

        os.kill(start["pid"], signal.SIGKILL)
        lab.go("on")

        assert newest.get(timeout=60) == "ran"
        assert first.get(timeout=60)["reason"] == f"replaced by {newest.id}"
        nothing_is_left(lab, "42")
    assert len(lab.journal.read("start")) == 2
