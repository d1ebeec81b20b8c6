"""``on_lost="abort"`` with real workers: the body ends, the message runs again, once."""

from __future__ import annotations

from typing import Any

import pytest

from celery_dlock.runtime import runtime
from tests.services.lab import Lab
from tests.services.until import until
from tests.workers.conftest import MakeLab

KEY = "order:42"

#: In a thread nothing ends a system call; everywhere else the signal does.
HOW = {"prefork": "sleeps", "threads": "polls"}


def run_past_its_lease(lab: Lab, pool: str, how: str) -> Any:
    """Stop a worker in the body until its lease has ended, and let it go on; the result."""
    backend = runtime(lab.app).backend
    with lab.worker(pool, concurrency=1) as worker:
        result = lab.app.tasks["outrun"].delay("42", how)
        lab.journal.wait_for("start")
        worker.pause()
        until("its lease ends", lambda: not (backend.reap(KEY) and backend.peek(KEY).holders))
        worker.resume()
        lab.journal.wait_for("lost")
        if lab.config["lock"].get("on_lost") == "abort":
            lab.journal.wait_for("aborted")
        lab.go("on")
        until("it is done", result.ready)
    return result


def tokens(lab: Lab, what: str) -> list[int]:
    return [entry["token"] for entry in lab.journal.read(what)]


def check_that_only_the_last_run_ended(lab: Lab) -> None:
    """Each run before it was aborted, and its token is the newest."""
    started = tokens(lab, "start")
    assert started == sorted(set(started))
    assert tokens(lab, "aborted") == started[:-1] != []
    assert tokens(lab, "end") == started[-1:]


@pytest.mark.parametrize("pool", HOW)
def test_a_body_paused_past_its_lease_runs_again(make_lab: MakeLab, pool: str) -> None:
    lab = make_lab(lock={"on_lost": "abort", "ttl": 1.0})

    result = run_past_its_lease(lab, pool, HOW[pool])

    assert result.get() == "ran"
    check_that_only_the_last_run_ended(lab)
    for aborted in lab.journal.read("aborted"):
        assert aborted["lost"]
        assert "'order:42' is lost" in aborted["error"]
    told = tokens(lab, "lost")
    assert len(set(told)) == len(told)
    assert set(told) <= set(tokens(lab, "aborted"))


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_leases_that_are_lost_around_the_end_of_the_body_strike_nothing_else(
    make_lab: MakeLab, pool: str
) -> None:
    lab = make_lab(lock={"on_lost": "abort", "ttl": 600.0})
    orders = [str(number) for number in range(150)]

    with lab.worker(pool, concurrency=2) as worker:
        sent = [lab.app.tasks["flicker"].delay(order) for order in orders]
        until("all are through", lambda: all(result.ready() for result in sent), timeout=120)
        backend = runtime(lab.app).backend
        until(
            "all have left",
            lambda: not any(backend.peek(f"order:{order}").holders for order in orders),
        )

    # Each run ended with its result, or with LockLost and then with its result
    assert {result.state for result in sent} == {"SUCCESS"}
    assert {result.get() for result in sent} == {0, 1}
    assert "Traceback" not in worker.log
    assert "exited" not in worker.log
