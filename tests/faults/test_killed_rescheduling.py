"""A worker is killed while it puts a message back: one message of the task is left, or two."""

from __future__ import annotations

import pytest

from celery_dlock import lock
from tests.faults.conftest import MakeLab, nothing_is_held
from tests.services import faults
from tests.services.effects import Effects
from tests.services.redelivery import deliver_again, not_finished, work_off
from tests.services.until import until

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]

PUBLISH = "celery_dlock.delivery.carry_out:publish_again"


@pytest.mark.parametrize(("when", "messages"), [("before", 1), ("after", 2)])
def test_a_kill_around_the_publish_leaves_messages_that_run_once(
    make_lab: MakeLab, effects: Effects, when: str, messages: int
) -> None:
    lab = make_lab(faults=[faults.kill(when, PUBLISH)], celery={"broker_pool_limit": None})
    with lab.worker("prefork", concurrency=1) as worker:
        # Given a key that is held, so that the task is to be published again
        with lock("order:42", app=lab.app, ttl=30):
            result = lab.app.tasks["pay"].delay("42", 7)
            # When its worker is killed before or after that, and before it acknowledges
            until("the fault strikes", lambda: faults.struck(lab.folder))
            assert worker.process is not None
            worker.process.wait(30)
        deliver_again(lab.app)
        assert not_finished(lab.app) == (messages, 0)
        # And the key is free
        work_off(lab, worker)
        log = worker.log
    # Then the body ran once, whoever came first, and the other was dropped
    assert len(lab.journal.read("start")) == 1
    assert len(effects.payments()) == 1
    assert log.count(f"Task pay[{result.id}] dropped at ") == messages - 1
    assert result.get() == 7
    assert nothing_is_held(lab, "42")
