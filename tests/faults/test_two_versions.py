"""Two versions of the library side by side; the newer one stores messages in a new form."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

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
)
from tests.services.next_version import next_version

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]

ORDERS = ("41", "42", "43")


@pytest.fixture
def lab(make_lab: MakeLab) -> Lab:
    return make_lab(lock={"policy": "queue", "ttl": 2.0})


def test_the_newer_one_runs_what_the_older_one_has_parked(lab: Lab, effects: Effects) -> None:
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
