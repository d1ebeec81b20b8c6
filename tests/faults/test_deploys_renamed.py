"""A deploy that gives a task another name, while messages with its old one wait."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from celery_dlock import lock
from tests.faults.conftest import MakeLab
from tests.services.effects import Effects
from tests.services.load import (
    all_have_ended,
    nothing_is_left,
    paid_once,
    state,
)
from tests.services.until import until
from tests.services.worker import Worker

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]

UNKNOWN = "Received unregistered task"


def test_a_worker_that_does_not_know_the_name_leaves_it_to_those_that_do(
    make_lab: MakeLab, effects: Effects
) -> None:
    lab = make_lab(lock={"policy": "queue", "ttl": 2.0})
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
        until("it is not known", lambda: UNKNOWN in new.log)
        new.kill()
        old.resume()
        # Then it is woken again, and both run where they are known
        until("both are paid", lambda: paid_once(effects, sent))
        all_have_ended(sent)
        nothing_is_left(lab, ["42"])
    assert [result.state for result in sent] == ["SUCCESS"] * 2
