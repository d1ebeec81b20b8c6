"""A new version of the workers takes over while messages wait and more keep coming.

Nothing is lost, nothing is stuck, nothing happens twice, whatever the new version changes.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest

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
)
from tests.services.until import until

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
