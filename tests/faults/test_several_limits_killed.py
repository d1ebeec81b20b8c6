"""Two limits at once with real workers, and one of them dies where a task comes to wait."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from celery_dlock.core.state import KeyState
from celery_dlock.runtime import runtime
from tests.faults.conftest import MakeLab
from tests.services import faults
from tests.services.lab import Lab
from tests.services.redelivery import deliver_again
from tests.services.tasks import ALL, EACH
from tests.services.until import until

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]

SETTLE = "celery_dlock.locks.other_keys:OtherKeys.settle"


def at(lab: Lab, key: str) -> KeyState:
    return runtime(lab.app).backend.peek(key)


def never_too_many(lab: Lab) -> None:
    running: Counter[str] = Counter()
    for entry in lab.journal.read():
        if entry["what"] in ("start", "end"):
            running[entry["tenant"]] += 1 if entry["what"] == "start" else -1
            assert max(running.values()) <= EACH
            assert sum(running.values()) <= ALL


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_worker_that_parks_at_a_limit_is_killed_around_leaving_the_narrower_one(
    make_lab: MakeLab, when: str
) -> None:
    lab = make_lab(lock={"policy": "queue"})
    load: Any = lab.app.tasks["load"]
    with lab.worker("prefork", concurrency=ALL):
        first = [load.delay(tenant, 0, hold="first") for tenant in "xyz"]
        lab.journal.wait_for("start", ALL)
        with lab.worker("prefork", 1, faults=[faults.kill(when, SETTLE)]) as parker:
            last = load.delay("a", 1)
            parker.ended()
        assert at(lab, "all").parked == 1
        deliver_again(lab.app)
        lab.go("first")
        assert last.get(timeout=60) == 1
        assert [each.get(timeout=60) for each in first] == [0, 0, 0]
        until("nobody has the narrow one", lambda: at(lab, "tenant:a") == KeyState())
    never_too_many(lab)
