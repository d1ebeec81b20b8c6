"""A new version of the workers takes over while messages wait and more keep coming.

Nothing is lost, nothing is stuck, nothing happens twice, whatever the new version changes.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from celery_dlock import lock
from tests.faults.conftest import MakeLab
from tests.services.effects import Effects
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
from tests.services.next_version import next_version
from tests.services.until import until
from tests.services.worker import Worker

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]

ORDERS = ("41", "42", "43")
OLD = {"policy": "queue", "ttl": 2.0}
NEW = {"policy": "skip", "ttl": 6.0}


def test_what_waits_runs_when_policy_and_ttl_have_changed(
    make_lab: MakeLab, effects: Effects
) -> None:
    lab = make_lab()
    with ExitStack() as workers:
        # Threads: a prefork worker that is stopped under load may take billiard's 30 s to go
        leaving = workers.enter_context(lab.worker("threads", 4, lock=OLD))
        before = backlog(lab, ORDERS, running=1, waiting=5)
        with load(lab, ORDERS) as during:
            coming = workers.enter_context(lab.worker("threads", 4, lock=NEW))
            lab.go("first")
            lab.journal.wait_for("end", pid=coming.pid)
            leaving.stop()
            count = len(during)
            until("work has come after it left", lambda: len(during) >= count + 10)
        all_have_ended([*before, *during])
        nothing_is_left(lab, ORDERS)

    # What waited has run, whatever the new version does with what it finds contended
    assert {result.state for result in before} == {"SUCCESS"}
    ran = [result for result in during if isinstance(result.result, int)]
    assert paid_once(effects, [*before, *ran])
    # And what came meanwhile has run, or has ended in the way of the new one
    assert {type(result.result) for result in during} <= {int, dict}
    assert most_at_once(bodies(lab)) == 1


def test_the_newer_one_runs_what_the_older_one_has_parked(
    make_lab: MakeLab, effects: Effects
) -> None:
    lab = make_lab(lock=OLD)
    with ExitStack() as workers:
        leaving = workers.enter_context(lab.worker("threads", 4))
        before = backlog(lab, ORDERS, running=1, waiting=5)
        coming = workers.enter_context(next_version(lab))
        with load(lab, ORDERS) as during:
            lab.go("first")
            leaving.stop()
            lab.journal.wait_for("end", 30, pid=coming.pid)
        all_have_ended([*before, *during])
        nothing_is_left(lab, ORDERS)

    assert paid_once(effects, [*before, *during])
    assert most_at_once(bodies(lab)) == 1


def test_a_worker_that_does_not_know_the_name_leaves_it_to_those_that_do(
    make_lab: MakeLab, effects: Effects
) -> None:
    lab = make_lab(lock=OLD)
    renamed = Worker(lab.folder, lab.config, "renamed", "threads", 4, "tests.services.renamed:app")
    with ExitStack() as workers:
        old = workers.enter_context(lab.worker("threads", 4))
        # Given two messages in the queue of a key
        with lock("order:42", app=lab.app, timeout=0):
            sent = [lab.app.tasks["pay"].delay("42") for _ in range(2)]
            until("they wait", lambda: state(lab, "42").parked == 2)
            # When the first is woken, and a worker takes it that does not know its task
            old.pause()
            new = workers.enter_context(renamed)
        until("it is not known", lambda: "Received unregistered task" in new.log)
        new.kill()
        old.resume()
        # Then it is woken again, and both run where they are known
        until("both are paid", lambda: paid_once(effects, sent))
        all_have_ended(sent)
        nothing_is_left(lab, ["42"])
    assert [result.state for result in sent] == ["SUCCESS"] * 2
