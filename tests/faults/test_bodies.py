"""Bodies that fork, hang, or run into their time limit."""

from __future__ import annotations

import pytest

from celery_dlock.locks.keeper import BOUND
from celery_dlock.runtime import runtime
from tests.faults.conftest import MakeLab, all_have_left
from tests.services.effects import Effects
from tests.services.lab import Lab

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]


def holders(lab: Lab) -> list[str]:
    return [holder.task for holder in runtime(lab.app).backend.peek("order:42").holders]


@pytest.mark.parametrize("how", ["os._exit", "as the tracer", "lock()"])
def test_a_process_that_the_body_forks_does_not_free_its_key(make_lab: MakeLab, how: str) -> None:
    lab = make_lab(lock={"ttl": 60.0})
    with lab.worker(concurrency=1):
        # Given a body that forks, and a child that ends: at once, through what the tracer does
        # after a body, or after a lock of its own
        result = lab.app.tasks["forking"].delay("42", how)
        lab.journal.wait_for("forked")
        assert len(lab.journal.read("locked")) == (how == "lock()")
        # Then the parent still holds the key, and frees it when it is through
        assert holders(lab) == [f"{result.id}:0:0"]
        lab.go("forked")
        assert result.get(timeout=30) == "parent"
        all_have_left(lab, "42")
    assert lab.journal.read("lost") == []


def test_a_body_that_hangs_gives_its_key_up_after_max_hold(
    make_lab: MakeLab, effects: Effects
) -> None:
    lab = make_lab(lock={"ttl": 1.5}, celery={"dlock_max_hold": 3.0})
    pay = lab.app.tasks["pay"]
    with lab.worker(concurrency=2):
        # Given a body that hangs, and another task that waits for its key
        hanging = pay.delay("42", 1, hold="for ever")
        lab.journal.wait_for("start")
        waiting = pay.delay("42", 2)
        assert waiting.get(timeout=30) == 2
        # Then it was renewed until then, and not after; the hook says why
        (first, second) = lab.journal.read("start")
        assert 3.0 <= second["at"] - first["at"] < 3.0 + 1.5 + 3.0
        (lost,) = lab.journal.read("lost")
        assert lost["id"] == hanging.id
        assert lost["reasons"] == [f"it was held for longer than 3 s ({BOUND})"]
        # And when it wakes up, its write is refused, and it runs again
        lab.go("for ever")
        assert hanging.get(timeout=60) == 1
    assert [payment[0] for payment in effects.payments()] == [waiting.id, hanging.id]
