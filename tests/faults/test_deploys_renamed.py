"""A deploy that gives a task another name, while messages with its old one wait."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from celery_dlock import lock
from tests.faults.conftest import MakeLab
from tests.services.effects import Effects
from tests.services.lab import Lab
from tests.services.load import (
    all_have_ended,
    backlog,
    bodies,
    load,
    most_at_once,
    nothing_is_left,
    paid_once,
    state,
)
from tests.services.until import until
from tests.services.worker import Worker

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]

ORDERS = ("41", "42", "43")
UNKNOWN = "Received unregistered task"


@pytest.fixture
def lab(make_lab: MakeLab) -> Lab:
    return make_lab(lock={"policy": "queue", "ttl": 2.0})


def renamed(lab: Lab, *, alias: bool) -> Worker:
    config = {**lab.config, "alias": alias}
    return Worker(lab.folder, config, "renamed", "threads", 4, "tests.services.renamed:app")


def test_an_alias_under_the_old_name_runs_what_waits(lab: Lab, effects: Effects) -> None:
    with ExitStack() as workers:
        leaving = workers.enter_context(lab.worker("threads", 4))
        before = backlog(lab, ORDERS, running=1, waiting=5)
        coming = workers.enter_context(renamed(lab, alias=True))
        lab.go("first")
        leaving.stop()  # it would fail whatever has the new name
        with load(lab, ORDERS, "settle") as during:
            lab.journal.wait_for("end", 30, pid=coming.pid)
        all_have_ended([*before, *during])
        nothing_is_left(lab, ORDERS)

    assert paid_once(effects, [*before, *during])
    assert most_at_once(bodies(lab)) == 1


def test_a_worker_that_does_not_know_the_name_leaves_it_to_those_that_do(
    lab: Lab, effects: Effects
) -> None:
    with ExitStack() as workers:
        old = workers.enter_context(lab.worker("threads", 4))
        # Given two messages in the queue of a key
        with lock("order:42", app=lab.app, timeout=0):
            sent = [lab.app.tasks["pay"].delay("42") for _ in range(2)]
            until("they wait", lambda: state(lab, "42").parked == 2)
            # When the first is woken, and a worker takes it that does not know its task
            old.pause()
            new = workers.enter_context(renamed(lab, alias=False))
        until("it is not known", lambda: UNKNOWN in new.log)
        new.kill()
        old.resume()
        # Then it is woken again, and both run where they are known
        until("both are paid", lambda: paid_once(effects, sent))
        all_have_ended(sent)
        nothing_is_left(lab, ["42"])
    assert [result.state for result in sent] == ["SUCCESS"] * 2
